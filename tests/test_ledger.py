"""The ledger: whatever is written twice, killed or damaged, an episode is there once and its first outcome stays."""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trainwright.agent.policy import Completion
from trainwright.errors import ConfigError, TrainwrightError
from trainwright.ledger import VERSION, Attempt, Episode, Ledger, Step, Taken

EPISODE = Episode("train-0000-0-0", "train-0000-0", "train", 0, "sort", "TRAINED", reward=0.4, gain=0.5)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


def fill(ledger: Ledger) -> None:
    """Write one small run."""
    ledger.add_group("train-0000-0", "train", 0, 0, "sort", {"seed": 3})
    brief = [{"role": "user", "content": "sort"}]
    ledger.add_attempts([(EPISODE.id, Attempt(0, brief, Completion("job", [1], [2], [-0.5])))])  # type: ignore[list-item]
    ledger.set_verdict(EPISODE.id, 0, "hash", "")
    ledger.finish(EPISODE)
    ledger.commit_step(Step(0, 0.3, {"reward": 0.4}, "checkpoints/step-0001", 1.5))


def test_what_was_written_is_read_back(path: Path) -> None:
    full = dataclasses.replace(
        EPISODE, valid=True, pre=0.1, metrics=[{"step": 1.0}], cpu_seconds={"learning": 0.5}, worker="7"
    )
    ledger = Ledger(path)
    ledger.add_group(full.group_id, "train", 0, 0, "sort", {"seed": 3})
    ledger.finish(full)
    ledger.close()
    ledger = Ledger(path)
    assert ledger.episode(full.id) == full
    assert ledger.all_episodes() == ledger.episodes("train") == ledger.episodes("train", 0) == [full]
    assert ledger.episodes("train", 1) == ledger.episodes("probe") == []
    assert [group["task"] for group in ledger.groups()] == [{"seed": 3}]
    assert ledger.episode("other") is None
    ledger.close()


def test_writing_again_changes_nothing(path: Path) -> None:
    ledger = Ledger(path)
    fill(ledger)
    before = ledger.fingerprint()
    ledger.add_group("train-0000-0", "train", 0, 0, "sort", {"seed": 4})
    ledger.add_attempts([(EPISODE.id, Attempt(0, [], Completion("another job")))])
    ledger.finish(dataclasses.replace(EPISODE, outcome="INFRA", reward=None))
    assert ledger.fingerprint() == before
    assert ledger.episode(EPISODE.id) == EPISODE
    assert ledger.attempts(EPISODE.id)[0].completion.text == "job"
    ledger.close()


def test_a_group_is_taken_once_and_with_its_step(path: Path) -> None:
    ledger = Ledger(path)
    fill(ledger)
    assert ledger.add_group("train-0001-0", "train", 1, 0, "sort", {"seed": 4}, 0.2) == 0.2
    assert ledger.add_group("train-0001-0", "train", 1, 0, "sort", {"seed": 4}, 0.1) == 0.2  # the first one stays
    assert ledger.drawn("train") == 2
    assert ledger.drawn("probe") == 0
    both = [Taken("train-0000-0", 1, True), Taken("train-0001-0", 0, False)]
    ledger.commit_step(Step(1, 0.3, {}, "", 1.0), both)
    with pytest.raises(sqlite3.IntegrityError):
        ledger.commit_step(Step(2, 0.3, {}, "", 1.0), [Taken("train-0001-0", 0, True)])
    assert ledger.taken() == both
    assert [step.step for step in ledger.steps()] == [0, 1]
    ledger.close()


def test_the_oldest_version_is_that_of_any_attempt(path: Path) -> None:
    ledger = Ledger(path)
    answers = [("a", 0, 3), ("b", 0, 2), ("b", 1, 4), ("c", 0, 1)]
    ledger.add_attempts([(id, Attempt(n, [], Completion("x"), version=version)) for id, n, version in answers])
    assert ledger.oldest_version(["a", "b"]) == 2
    assert [attempt.version for attempt in ledger.attempts("b")] == [2, 4]
    ledger.close()


def test_a_step_is_committed_once(path: Path) -> None:
    ledger = Ledger(path)
    fill(ledger)
    with pytest.raises(sqlite3.IntegrityError):
        ledger.commit_step(ledger.steps()[0])
    ledger.close()


def test_an_episode_that_cannot_be_stored_is_not_lost_silently(path: Path) -> None:
    ledger = Ledger(path)
    with pytest.raises(sqlite3.IntegrityError):
        ledger.finish(dataclasses.replace(EPISODE, gain=float("nan")))  # SQLite stores NaN as NULL
    ledger.close()


def test_facts_are_json(path: Path) -> None:
    ledger = Ledger(path)
    ledger.set("config", {"steps": 3})
    ledger.set("config", {"steps": 4})
    assert ledger.get("config") == {"steps": 4}
    assert ledger.get("nothing") is None
    assert ledger.get("nothing", 0.0) == 0.0
    ledger.close()


def test_the_fingerprint_ignores_times_only(tmp_path: Path) -> None:
    def fingerprint(name: str, **changes: object) -> str:
        ledger = Ledger(tmp_path / f"{name}.sqlite")
        ledger.add_group("train-0000-0", "train", 0, 0, "sort", {"seed": 3})
        ledger.finish(dataclasses.replace(EPISODE, **changes))  # type: ignore[arg-type]
        seconds = float(str(changes.get("wall_seconds", 1.0)))
        ledger.commit_step(Step(0, 0.3, {"reward": 0.4, "seconds": seconds}, "checkpoints/step-0001", seconds))
        found = ledger.fingerprint()
        ledger.close()
        return found

    base = fingerprint("base")
    assert fingerprint("time", wall_seconds=9.0, cpu_seconds={"learning": 2.0}, worker="8") == base
    changes: list[dict[str, object]] = [
        {"reward": 0.41}, {"detail": "x"}, {"metrics": [{"step": 1.0}]}, {"post": 0.2}, {"attempts": 2},
        {"student": "nano-48"}, {"sandbox": "reduced"},
    ]  # fmt: skip
    others = {fingerprint(f"other-{number}", **change) for number, change in enumerate(changes)}
    assert len(others | {base}) == len(changes) + 1


def test_metrics_are_one_json_line_a_step(path: Path) -> None:
    ledger = Ledger(path)
    fill(ledger)
    ledger.commit_step(Step(1, 0.2, {"reward": 0.6}, "checkpoints/step-0002", 2.5))
    ledger.write_metrics(path.with_name("metrics.jsonl"))
    lines = path.with_name("metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"step": 1, "validity_weight": 0.3, "seconds": 1.5, "reward": 0.4},
        {"step": 2, "validity_weight": 0.2, "seconds": 2.5, "reward": 0.6},
    ]
    ledger.close()


def test_reading_while_it_is_written_is_safe(path: Path) -> None:
    writer = Ledger(path)
    fill(writer)
    reader = Ledger(path, read_only=True)
    assert reader.episode(EPISODE.id) == EPISODE
    writer.finish(dataclasses.replace(EPISODE, id="train-0000-0-1"))
    assert len(reader.all_episodes()) == 2
    with pytest.raises(TrainwrightError, match="readonly"):
        reader.set("key", 1)
    reader.close()
    writer.close()


def test_a_missing_ledger_is_not_made_by_a_reader(path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no ledger there; is .* a run folder"):
        Ledger(path, read_only=True)
    assert not path.exists()


def test_an_empty_ledger_is_a_run_that_has_not_started(path: Path) -> None:
    path.touch()
    with pytest.raises(ConfigError, match="has not started yet"):
        Ledger(path, read_only=True)
    ledger = Ledger(path)
    fill(ledger)
    ledger.close()


@pytest.mark.parametrize("read_only", [False, True])
def test_a_file_that_is_no_ledger_is_named(path: Path, read_only: bool) -> None:
    path.write_bytes(b"not a database, but long enough to be looked at" * 100)
    with pytest.raises(TrainwrightError, match=r"ledger\.sqlite: .*not a database"):
        Ledger(path, read_only=read_only)


def test_another_programs_database_is_left_alone(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE run (id INTEGER)")
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="not a trainwright ledger"):
        Ledger(path)
    assert path.read_bytes() == before


def test_a_damaged_ledger_is_named(path: Path) -> None:
    ledger = Ledger(path)
    fill(ledger)
    ledger.close()
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    path.write_bytes(data)

    def use() -> None:
        ledger = Ledger(path)
        ledger.fingerprint()

    with pytest.raises(TrainwrightError, match=r"ledger\.sqlite: the ledger can't be used"):
        use()


@pytest.mark.parametrize("other", [VERSION + 1, VERSION - 1])
@pytest.mark.parametrize("read_only", [False, True])
def test_a_ledger_of_another_version_is_refused_and_kept(path: Path, other: int, read_only: bool) -> None:
    ledger = Ledger(path)
    fill(ledger)
    ledger.set("version", other)
    ledger.close()
    with pytest.raises(ConfigError, match=f"of version {other}, .* reads version {VERSION}; use"):
        Ledger(path, read_only=read_only)
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT value FROM run WHERE key = 'version'").fetchall() == [(str(other),)]


def test_a_path_with_odd_characters_works(tmp_path: Path) -> None:
    folder = tmp_path / "a?mode=ro#b %41 ü"
    folder.mkdir()
    Ledger(folder / "ledger.sqlite").close()
    assert [entry.name for entry in folder.iterdir()] == ["ledger.sqlite"]


def test_a_folder_in_its_place_is_named(path: Path) -> None:
    path.mkdir()
    with pytest.raises(TrainwrightError, match="unable to open"):
        Ledger(path)


def test_a_full_disk_is_named_and_nothing_is_half_written(path: Path) -> None:
    ledger = Ledger(path)
    fill(ledger)
    before = ledger.fingerprint()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    size = sum(entry.stat().st_size for entry in path.parent.iterdir())
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        with pytest.raises(TrainwrightError, match=r"ledger\.sqlite: .*disk"):
            ledger.finish(dataclasses.replace(EPISODE, id="train-0000-0-1", detail="x" * 4 * size))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert ledger.fingerprint() == before
    ledger.finish(dataclasses.replace(EPISODE, id="train-0000-0-1"))
    assert len(ledger.all_episodes()) == 2
    ledger.close()


def test_kill_9_loses_no_finished_episode(tmp_path: Path) -> None:
    code = (
        "import dataclasses, sys; from pathlib import Path\n"
        "from trainwright.ledger import Episode, Ledger\n"
        "ledger = Ledger(Path(sys.argv[1]))\n"
        "start = len(ledger.all_episodes())\n"
        "for n in range(start, 10_000):\n"
        "    ledger.finish(Episode(f'e-{n:05d}', 'g', 'train', 0, 'sort', 'TRAINED', detail='x' * 1000))\n"
        "    print(n, flush=True)\n"
    )
    path = tmp_path / "ledger.sqlite"
    for seconds in (0.0, 0.03, 0.1):
        writer = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        last = int(writer.stdout.readline())
        time.sleep(seconds)
        os.kill(writer.pid, signal.SIGKILL)
        last = max([last, *(int(line) for line in writer.stdout if line.endswith("\n"))])
        writer.wait()
        ledger = Ledger(path)
        ids = [episode.id for episode in ledger.all_episodes()]
        assert ids[: last + 1] == [f"e-{n:05d}" for n in range(last + 1)]
        assert len(ids) - (last + 1) <= 1  # one may have been written and not yet said
        ledger.close()
