"""The registry, and the example of docs/families.md as a user would install it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from trainwright.errors import ConfigError
from trainwright.job.gate import check_static
from trainwright.suites.family import check_claims, family_named

PAGE = Path(__file__).parents[2] / "docs" / "families.md"

USE = """
from trainwright.errors import ConfigError
from trainwright.job.gate import check_static
from trainwright.suites.family import families, family_named, suite_families

family = family_named("acronym")
assert families()["acronym"] is family and suite_families("mine") == [family]
task = family.draw(7)
assert task == family.draw(7) and task.key == family.draw(8).key and task.examples != family.draw(8).examples
items = family.hidden_items(task, 1, 300)
assert items == family.hidden_items(task, 1, 300) and items != family.hidden_items(task, 2, 300)
shown = {word for example in task.examples for word in example.prompt.split(":")[0].split()}
assert not any(shown & set(item.prompt.split(":")[0].split()) for item in items)
for item in items:
    assert family.score(item, f"So: <answer>{item.answer}</answer>") == 1.0
    right = f"<answer>{item.answer}</answer>"
    for reply in ("", item.answer, item.prompt, right.replace("</", "s</"), right * 2):
        assert family.score(item, reply) == 0.0
settings = check_static(family.reference_job(task, "qwen3-0.6b"), task)
assert settings.rollouts == task.offer("qwen3-0.6b").rollout_budget
made = family_named("made-of-air")
assert made == "the family made-of-air"
try:
    family_named("nothing-like-it")
except ConfigError as error:
    print(error)
"""


def block(after: str) -> str:
    """Return the first fenced block of the page after a line that contains `after`."""
    found = re.search(
        rf"{re.escape(after)}.*?\n```\w*\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    assert found is not None, after
    return found[1]


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """Return a folder that holds the page's example as an installed package, and a factory next to it."""
    (tmp_path / "acronyms.py").write_text(block("`acronyms.py`, complete:"), encoding="utf-8")
    (tmp_path / "makers.py").write_text("def make(name):\n    return f'the family {name}'\n", encoding="utf-8")
    project = block("Register it as an entry point of your package")
    points = project.partition('[project.entry-points."trainwright.families"]\n')[2].replace('"', "")
    info = tmp_path / "my_families-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-families\nVersion: 0.1.0\n", encoding="utf-8")
    factories = "[trainwright.family_factories]\nmade = makers:make\n"
    (info / "entry_points.txt").write_text(f"[trainwright.families]\n{points}\n{factories}", encoding="utf-8")
    return tmp_path


def test_the_example_of_the_page_works_as_installed(installed: Path) -> None:
    run = subprocess.run([sys.executable, "-c", USE], cwd=installed, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("unknown task family 'nothing-like-it'; known: ")
    assert "acronym" in run.stdout


def test_the_reference_job_of_the_page_rewards_right_replies(installed: Path) -> None:
    program = (
        "from acronyms import Acronym; f = Acronym(); t = f.draw(1);"
        "open('environment.py', 'w').write(f.reference_job(t, 'qwen3-0.6b').files['environment.py']);"
        "import environment as e, verifiers.v1 as vf; from trainwright.environment.scoring import Taskset;"
        "s = Taskset(e.Problems(vf.TasksetConfig(id='job')), 32768); s.rows(40);"
        "a = next(iter(e.Problems(vf.TasksetConfig(id='job')))).data.answer;"
        "r = s.score([(0, f'<answer>{a}</answer>'), (0, a), (0, '')]);"
        "print(*(sum(one['parts'].values()) for one in r))"
    )
    run = subprocess.run([sys.executable, "-c", program], cwd=installed, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["1.0", "0.0", "0.0"]


def test_the_example_of_the_page_has_at_most_60_lines_of_code() -> None:
    assert len([line for line in block("`acronyms.py`, complete:").splitlines() if line.strip()]) <= 60


def test_two_packages_that_claim_one_name_are_an_error(installed: Path) -> None:
    twin = installed / "twin-1.0.dist-info"
    twin.mkdir()
    (twin / "METADATA").write_text("Metadata-Version: 2.1\nName: twin\nVersion: 1.0\n", encoding="utf-8")
    (twin / "entry_points.txt").write_text("[trainwright.families]\nacronym = acronyms:Acronym\n", encoding="utf-8")
    program = "from trainwright.suites.family import families; families()"
    run = subprocess.run([sys.executable, "-c", program], cwd=installed, capture_output=True, text=True)
    assert "two installed packages provide the task family 'acronym'" in run.stderr


def test_a_family_that_does_not_load_is_named(installed: Path) -> None:
    (installed / "acronyms.py").write_text("import no_such_module_at_all\n", encoding="utf-8")
    program = "from trainwright.suites.family import families; families()"
    run = subprocess.run([sys.executable, "-c", program], cwd=installed, capture_output=True, text=True)
    assert (
        "task family 'acronym' (acronyms:Acronym) does not load: No module named 'no_such_module_at_all'" in run.stderr
    )


def test_only_a_family_that_refuses_stops_a_claim() -> None:
    class Refusing:
        def check_claims(self) -> None:
            raise ConfigError("too small")

    check_claims(object())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="too small"):
        check_claims(Refusing())  # type: ignore[arg-type]


def test_the_registered_families_keep_the_protocol() -> None:
    for name in ("reverse", "add"):
        family = family_named(name)
        task = family.draw(1)
        assert check_static(family.reference_job(task, task.offers[0].student), task).student == task.offers[0].student
