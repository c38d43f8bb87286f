"""The image definition against the code. It's built nowhere; this only keeps the two from drifting apart."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trainwright.pools.runpod.config import RunpodConfig

ROOT = Path(__file__).parents[3]
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text()
FIELDS = RunpodConfig.model_fields


def copied() -> dict[str, str]:
    """Return what is copied into the image: source by the path it gets."""
    found = {}
    for line in re.findall(r"^COPY (.*)$", DOCKERFILE, re.MULTILINE):
        *sources, target = line.split()
        found |= {target + Path(source).name: source for source in sources}
    return found


def test_only_the_agent_and_the_evaluation_command_go_into_a_pod() -> None:
    assert sorted(Path(source).name for source in copied().values()) == ["pod_agent.py", "pod_evaluate.py"]
    assert all((ROOT / source).is_file() for source in copied().values())
    ignored = (ROOT / "docker" / "Dockerfile.dockerignore").read_text().split()
    assert ignored == ["*", *(f"!{source}" for source in copied().values())]


@pytest.mark.parametrize("needed", ["/opt/trainwright/pod_agent.py", FIELDS["evaluation_command"].default[-1]])
def test_commands_find_their_files(needed: str) -> None:
    assert needed in copied()


def test_process_one_is_the_agent() -> None:
    assert re.search(r'^ENTRYPOINT \[.*"/opt/trainwright/pod_agent.py"\]$', DOCKERFILE, re.MULTILINE)


def test_users_and_port_are_those_of_the_settings() -> None:
    uid = int(FIELDS["job_uid"].default)
    assert re.findall(r"--uid (\d+)", DOCKERFILE) == [str(uid), str(uid + 1)]
    assert f"EXPOSE {FIELDS['port'].default}" in DOCKERFILE
