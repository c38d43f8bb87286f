"""`trainwright status`: from the ledger alone, whatever state the run is in."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from pathlib import Path

import pytest

from trainwright.config import RunConfig
from trainwright.errors import ConfigError, TrainwrightError
from trainwright.ledger import Ledger
from trainwright.report.status import print_status

MakeLedger = Callable[..., Ledger]


def test_a_finished_run(config: RunConfig, make_ledger: MakeLedger, capsys: pytest.CaptureFixture[str]) -> None:
    make_ledger().close()
    print_status(config.folder)
    shown = capsys.readouterr().out
    assert f"{config.folder}: finished, 2 of 2 steps, seed 0, sandbox full" in shown
    assert "2 REJECTED, 6 TRAINED" in shown
    assert "step 2: reward +0.500" in shown
    assert "held-out shift after 0 steps: gain 0.150 ± 0.050 (n=2)" in shown
    assert "held-out shift after 2 steps: gain 0.450 ± 0.150 (n=2)" in shown
    assert "sort" in shown


def test_a_working_run_is_read_while_it_is_written(
    config: RunConfig, make_ledger: MakeLedger, add_episode: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = make_ledger()
    add_episode(ledger, "train-0002-0-0", "train", 2, "sort")
    with open(config.folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        print_status(config.folder)
        shown = capsys.readouterr().out
        assert ": working, 2 of 2 steps" in shown
        assert "1 episodes of the next step are done" in shown
    add_episode(ledger, "train-0002-0-1", "train", 2, "sort")  # the reader left no lock behind
    ledger.close()


def test_a_stopped_run(config: RunConfig, make_ledger: MakeLedger, capsys: pytest.CaptureFixture[str]) -> None:
    ledger = make_ledger()
    ledger.set("config", ledger.get("config") | {"steps": 9})
    ledger.close()
    print_status(config.folder)
    assert ": stopped, 2 of 9 steps" in capsys.readouterr().out


def test_a_run_without_a_step(config: RunConfig, make_ledger: MakeLedger, capsys: pytest.CaptureFixture[str]) -> None:
    make_ledger(filled=False).close()
    print_status(config.folder)
    assert "0 of 24 steps" in capsys.readouterr().out


def test_what_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such run folder"):
        print_status(tmp_path / "missing")
    with pytest.raises(ConfigError, match="no ledger there"):
        print_status(tmp_path)
    (tmp_path / "ledger.sqlite").write_text("something else entirely, and long enough to be a header" * 50)
    with pytest.raises(TrainwrightError, match="not a database"):
        print_status(tmp_path)


def test_looking_changes_no_file(config: RunConfig, make_ledger: MakeLedger) -> None:
    make_ledger().close()
    before = {path.name: path.read_bytes() for path in config.folder.iterdir()}
    print_status(config.folder)
    after = {path.name: path.read_bytes() for path in config.folder.iterdir()}
    assert {name: data for name, data in after.items() if "-" not in name} == before  # SQLite's own files aside
