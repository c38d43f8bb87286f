"""What a run shows: lines for logs, a live table for a terminal."""

from __future__ import annotations

import io
from typing import Any

import pytest

from trainwright.ledger import Episode
from trainwright.report.view import LiveView, PlainView, Tally, duration, make_view, verdict_line

METRICS: dict[str, Any] = {"reward": 0.25, "gain": 0.1, "validity": 0.5, "job_faults": 0.125, "infra_dropped": 1}
TRAINED = Episode("train-0000-0-0", "g", "train", 0, "sort", "TRAINED", pre=0.2, post=0.5, gain=0.5)
REJECTED = Episode("train-0000-0-1", "g", "train", 0, "sort", "REJECTED", "syntax", "environment.py:3: what [syntax]")


def test_durations_are_read_at_a_glance() -> None:
    assert [duration(seconds) for seconds in (0.4, 65, 3599.6, 7384)] == ["0:00", "1:05", "1:00:00", "2:03:04"]


def test_a_verdict_is_one_line() -> None:
    assert verdict_line(TRAINED) == "sort 0.20 -> 0.50, gain +0.50"
    assert verdict_line(REJECTED) == "sort REJECTED environment.py:3: what [syntax]"


def test_the_plain_view_prints_a_line_a_step() -> None:
    stream = io.StringIO()
    view = PlainView(stream)
    view.note("2 workers")
    view.episode(TRAINED)
    view.episode(REJECTED)
    view.step(1, 4, METRICS, 10.0)
    view.probe("probe-before", "shift", 0.125, 8)
    view.close()
    note, step, probe = stream.getvalue().splitlines()
    assert note == "2 workers"
    for part in ("step 1/4", "reward +0.250", "gain +0.100", "valid 50%", "faults 12%", "dropped 1", "left 0:30"):
        assert part in step
    assert step.endswith("last: sort REJECTED environment.py:3: what [syntax]")
    assert probe == "probe-before: held-out shift gain +0.125 (n=8)"


def test_progress_is_printed_at_quarters() -> None:
    stream = io.StringIO()
    update = PlainView(stream).progress("building")
    for done in range(101):
        update(done, 100)
    assert stream.getvalue().splitlines() == [f"building: {percent} %" for percent in (25, 50, 75, 100)]


def test_the_time_left_follows_the_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    tally = Tally(started=0.0)
    tally.jobs = 6
    clock[0] = 20.0
    assert tally.remaining(3, 10, 20.0) == 140.0  # a resumed run: one step seen, its own time counts
    clock[0] = 30.0
    assert tally.remaining(4, 10, 10.0) == 60.0
    clock[0] = 60.0
    assert tally.remaining(6, 10, 15.0) == pytest.approx(40 / 3 * 4)
    assert tally.jobs_per_minute() == 6.0


def test_the_live_view_shows_steps_and_the_last_job(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    stream = io.StringIO()
    monkeypatch.setattr("rich.console.Console", lambda: Console(file=stream, force_terminal=True, width=120))
    view = LiveView()
    update = view.progress("building the base student nano-64")
    update(5, 10)
    view.episode(REJECTED)
    view.probe("probe-before", "shift", 0.125, 8)
    view.step(1, 4, METRICS, 10.0)
    view.note("[bold]not markup[/bold]")
    view.close()
    view.close()
    shown = stream.getvalue()
    for part in ("1/4", "+0.250", "50%", "+0.125", "last job: sort REJECTED", "[bold]not markup[/bold]", "0:30"):
        assert part in shown


def test_a_pipe_gets_the_plain_view(capsys: pytest.CaptureFixture[str]) -> None:
    assert isinstance(make_view(plain=False), PlainView)
    assert isinstance(make_view(plain=True), PlainView)
