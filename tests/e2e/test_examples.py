"""The examples are settings that load, and what they don't know is marked as such."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainwright.config import load_config
from trainwright.suites.family import suite_families

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.toml")), ids=lambda file: file.name)
def test_an_example_loads(file: Path) -> None:
    assert load_config(file).folder.parts[0] == "runs"


def test_the_full_example_names_its_pods_and_what_serves_each_student() -> None:
    config = load_config(EXAMPLES / "full.toml")
    assert (config.pool.backend, config.engine.backend) == ("runpod", "prime-rl")
    pods = config.pool.runpod
    assert pods is not None
    offered = {offer.student for family in suite_families(config.tasks.suite) for offer in family.draw(0).offers}
    assert offered <= pods.services.keys()
    text = (EXAMPLES / "full.toml").read_text()
    (line,) = [line for line in text.splitlines() if line.startswith("image = ")]
    assert "example.org" in line
    assert "placeholder" in text[: text.index(line)].splitlines()[-1]
