"""The command line: help with an example for every verb, one line for every mistake, nothing heavy for either."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trainwright import __version__
from trainwright.cli import app, main
from trainwright.job.specification import job_format

VERBS = sorted(command.callback.__name__ for command in app.registered_commands if command.callback is not None)
HEAVY = ("torch", "transformers", "verifiers", "tokenizers", "matplotlib", "rich", "numpy", "httpx")


def call(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """Return the exit code of the command."""
    monkeypatch.setattr("sys.argv", ["trainwright", *map(str, arguments)])
    with pytest.raises(SystemExit) as caught:
        main()
    return int(caught.value.code or 0)


def test_the_verbs_are_known() -> None:
    assert {"run", "gate", "train", "families", "status"} <= set(VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_an_example(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert call(monkeypatch, verb, "--help") == 0
    shown = capsys.readouterr().out
    assert f"Usage: trainwright {verb}" in shown
    assert f"Example: trainwright {verb} " in shown


def test_the_help_lists_every_verb(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(monkeypatch, "--help") == 0
    shown = capsys.readouterr().out
    for verb in VERBS:
        assert f"  {verb} " in shown
    assert "Start with: trainwright run examples/nano.toml" in shown


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["pods", "smoke", "--help"], *([verb, "--help"] for verb in VERBS)]
)
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys\n"
        "from trainwright.cli import main\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n    assert not end.code, end.code\n"
        f"print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"
    assert done.stdout


def test_the_version_is_the_packages(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == f"{__version__}\n"


def test_the_module_and_the_script_are_the_same_command() -> None:
    program = Path(sys.executable).with_name("trainwright")
    for command in ([str(program)], [sys.executable, "-m", "trainwright.cli"]):
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
        assert done.stdout == f"{__version__}\n"


BAD_JOB = "```python environment.py\nimport torch\n```\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder, the current one, with good and bad inputs in it."""
    (tmp_path / "job.md").write_text(job_format())
    (tmp_path / "half-a-job.md").write_text(BAD_JOB)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "empty").mkdir()
    (tmp_path / "list.toml").write_text("[[a]]\n")
    (tmp_path / "wrong.toml").write_text("stepz = 3\n")
    (tmp_path / "fine.toml").write_text('folder = "run"\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("run missing.toml", "missing.toml: no such file"),
        ("run empty", "empty: is a folder"),
        ("run binary", "binary: not valid TOML"),
        ("run list.toml", "list.toml: a: unknown key"),
        ("run wrong.toml", "wrong.toml: stepz: unknown key"),
        ("run fine.toml --set seed", "--set seed: write it as table.key=value"),
        ("run fine.toml --set seed=x", "seed: "),
        ("run fine.toml --set folder=binary", "the run folder binary can't be used"),
        ("gate missing --task sort", "There is no job folder missing"),
        ("gate empty --task sort", "The job has no environment.py"),
        ("gate binary --task sort", "binary: can't be read"),
        ("gate half-a-job.md --task sort", "The job has no train.toml"),
        ("gate job.md --task sorting", "unknown task family 'sorting'; known: "),
        ("gate job.md --task sort:x", "the seed after the colon must be a whole number"),
        ("train job.md --task sort:-1", "the seed after the colon must be a whole number"),
        ("train missing --task sort", "There is no job folder missing"),
        ("families --suite micro", "unknown suite 'micro'; known: "),
        ("families --reference sorting:1", "unknown task family 'sorting'"),
        ("status missing", "missing: no such run folder"),
        ("status empty", "no ledger there"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    arguments: str,
    message: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert call(monkeypatch, *arguments.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("trainwright: ")
    assert err.count("\n") == 1
    assert message in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "Usage: trainwright"),
        ("fly", "No such command 'fly'"),
        ("run", "Missing argument 'FILE'"),
        ("run fine.toml --speed", "No such option"),
        ("gate job.md", "Missing option '--task'"),
        ("train job.md --task sort --seed x", "'--seed': Input should be a valid integer"),
        ("train job.md --task sort --items 0", "'--items': Input should be greater than or equal to 8"),
        ("status", "Missing argument 'RUN'"),
    ],
)
def test_a_wrong_usage_is_explained(
    arguments: str,
    message: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert call(monkeypatch, *arguments.split()) == 2
    out, err = capsys.readouterr()
    assert message in out + err
    assert "Traceback" not in out + err


def test_families_lists_the_suite(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(monkeypatch, "families", "--suite", "nano") == 0
    shown = capsys.readouterr().out
    for name in ("reverse", "shift", "sort", "unique", "count", "add"):
        assert f"{name} (nano): " in shown
    assert shown.count(" -> ") == 6
    assert "nano-64 (" in shown


def test_the_reference_job_is_printed_as_an_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from trainwright.job.job import Job
    from trainwright.suites.family import family_named

    assert call(monkeypatch, "families", "--reference", "sort:3") == 0
    family = family_named("sort")
    task = family.draw(3)
    assert Job.parse(capsys.readouterr().out) == family.reference_job(task, task.offers[0].student)


def test_what_the_machine_fails_at_is_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "run/run.toml")

    monkeypatch.setattr("trainwright.run.write_atomically", full)
    assert call(monkeypatch, "run", "fine.toml") == 3
    assert capsys.readouterr().err == "trainwright: run/run.toml: No space left on device\n"
