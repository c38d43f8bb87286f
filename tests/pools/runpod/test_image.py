"""The image definition against the code. It's built nowhere; this only keeps the two from drifting apart."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from trainwright.pools.runpod.config import RunpodConfig

ROOT = Path(__file__).parents[3]
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text()
IGNORED = (ROOT / "docker" / "Dockerfile.dockerignore").read_text().split()
FIELDS = RunpodConfig.model_fields
WHAT_A_JOB_NEEDS = """
import sys
import trainwright.pools.runpod.run_job, trainwright.pools.worker, trainwright.environment.client
from trainwright.backends import make_engine
from trainwright.config import EngineConfig
make_engine(EngineConfig(backend="prime-rl"))
print(trainwright.__file__)
print(*(name for name in sys.modules if name.startswith(("trainwright.suites.", "trainwright_hidden", "torch"))))
"""


def copied() -> dict[str, str]:
    """Return what is copied into the image: source by the path it gets."""
    found = {}
    for line in re.findall(r"^COPY (.*)$", DOCKERFILE, re.MULTILINE):
        *sources, target = line.split()
        found |= {target + Path(source).name if target.endswith("/") else target: source for source in sources}
    return found


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the files that the ignore file lets through."""
    folder = tmp_path_factory.mktemp("context")
    for pattern in IGNORED:
        if pattern.startswith("!"):
            for source in ROOT.glob(pattern[1:]):
                target = folder / source.relative_to(ROOT)
                target.parent.mkdir(parents=True, exist_ok=True)
                if source.is_dir():
                    shutil.copytree(source, target)
                else:
                    shutil.copy(source, target)
        else:
            for path in folder.glob(pattern.rstrip("/")):
                if path.is_dir():
                    shutil.rmtree(path)
                elif not pattern.endswith("/"):
                    path.unlink()
    return folder


def test_everything_that_is_copied_passes_the_ignore_file(context: Path) -> None:
    assert IGNORED[0] == "*"
    for source in copied().values():
        assert (context / source).exists(), source


def test_no_benchmark_grader_or_reference_goes_into_a_pod(context: Path) -> None:
    names = {str(path.relative_to(context / "src")) for path in (context / "src").rglob("*.py")}
    assert {name for name in names if "suites" in name} == {
        "trainwright/suites/__init__.py",
        "trainwright/suites/family.py",
        "trainwright/suites/offers.py",
    } & names
    assert not {name for name in names if not name.startswith("trainwright/")}


def test_the_job_command_finds_all_it_needs_in_the_image(context: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", WHAT_A_JOB_NEEDS],
        env=os.environ | {"PYTHONPATH": str(context / "src")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    file, modules = done.stdout.split("\n")[:2]
    assert Path(file).is_relative_to(context)
    assert modules == "trainwright.suites.family"


@pytest.mark.slow
def test_the_package_can_be_built_from_what_the_image_gets(context: Path, tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path)]
    done = subprocess.run([*pip, str(context)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("trainwright-*.whl"))) == 1


@pytest.mark.parametrize("needed", ["/opt/trainwright/pod_agent.py", FIELDS["evaluation_command"].default[-1]])
def test_commands_find_their_files(needed: str) -> None:
    assert needed in copied()


def test_the_job_command_is_that_of_the_environment_which_the_image_makes() -> None:
    interpreter, *_, module = FIELDS["job_command"].default
    assert f"-m venv {Path(interpreter).parents[1]} " in DOCKERFILE
    assert (ROOT / "src" / module.replace(".", "/")).with_suffix(".py").exists()


def test_process_one_is_the_agent() -> None:
    assert re.search(r'^ENTRYPOINT \[.*"/opt/trainwright/pod_agent.py"\]$', DOCKERFILE, re.MULTILINE)


def test_users_and_port_are_those_of_the_settings() -> None:
    uid = int(FIELDS["job_uid"].default)
    assert re.findall(r"--uid (\d+)", DOCKERFILE) == [str(uid), str(uid + 1)]
    assert f"EXPOSE {FIELDS['port'].default}" in DOCKERFILE
