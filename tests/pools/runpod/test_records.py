"""The records: rows, books, results, and one process at a time."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainwright.errors import ConfigError
from trainwright.pools.runpod.records import Attempt, JobRow, PodRow, Records, read_spend


@pytest.fixture
def records(tmp_path: Path) -> Iterator[Records]:
    """Yield open records."""
    opened = Records(tmp_path / "pods.sqlite")
    yield opened
    opened.close()


def row(name: str = "pod", now: float = 1000.0) -> PodRow:
    """Return the row of a new pod that costs a cent a second."""
    return PodRow(name, "training", "g", "SECURE", "", 36.0, "token", now, now + 999, now + 600, "INTENT", now)


def test_every_second_of_a_pod_is_booked_once(records: Records) -> None:
    pod = row()
    records.intend(pod)
    records.move(pod, "BOOTING", 1010.0)
    records.move(pod, "IDLE", 1020.0)
    records.move(pod, "WORKING", 1025.0)
    records.move(pod, "IDLE", 1055.0)
    records.move(pod, "WORKING", 1060.0)
    records.move(pod, "IDLE", 1070.0, kind="lost")
    records.move(pod, "RESTARTING", 1072.0)
    assert records.spend(1082.0)["booting"] == (pytest.approx(30.0), pytest.approx(0.3))
    records.end(pod, 1082.0, "no more work")
    spend = records.spend(5000.0)
    assert {kind: seconds for kind, (seconds, _) in spend.items()} == {
        "working": 30.0,
        "booting": 30.0,
        "idle": 12.0,
        "lost": 10.0,
    }
    assert sum(usd for _, usd in spend.values()) == pytest.approx(0.82)
    assert records.live() == []


def test_what_runs_is_shown_up_to_its_lease_while_another_process_works(records: Records) -> None:
    pod = row()
    records.intend(pod)
    records.move(pod, "IDLE", 1010.0)
    folder = records.path.parent
    assert read_spend(folder, 1030.0) == records.spend(1030.0)
    assert records.spend(1030.0)["idle"] == (pytest.approx(20.0), pytest.approx(0.2))
    assert records.spend(99_999.0)["idle"][0] == pytest.approx(590.0)
    assert read_spend(folder / "elsewhere", 1030.0) is None
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / "pods.sqlite").write_text("no database, but long enough to be read as one" * 9)
    with pytest.raises(ConfigError, match="can't be read"):
        read_spend(folder / "elsewhere", 1030.0)


def test_a_pod_that_never_was_costs_nothing(records: Records) -> None:
    pod = row()
    records.intend(pod)
    records.end(pod, 1100.0, "400", existed=False)
    assert sum(usd for _, usd in records.booked().values()) == 0


def test_rows_survive_the_process_and_memory_agrees_with_the_file(tmp_path: Path) -> None:
    first = Records(tmp_path / "pods.sqlite")
    owner, pod = first.owner, row()
    first.intend(pod)
    first.update(pod, pod_id="abc", usd_per_hour=40.0)
    first.move(pod, "BOOTING", 1010.0, trust_group="g")
    first.close()
    second = Records(tmp_path / "pods.sqlite")
    assert second.owner == owner
    assert second.live() == [pod]
    second.close()
    second.close()


def test_only_one_process_and_only_its_user_may_look(tmp_path: Path, records: Records) -> None:
    with pytest.raises(ConfigError, match="another process"):
        Records(records.path)
    assert stat.S_IMODE(records.path.stat().st_mode) == 0o600
    other = Records(tmp_path / "other" / "pods.sqlite")
    assert other.owner != records.owner
    other.close()


def test_the_first_result_of_a_job_wins(records: Records) -> None:
    job = JobRow("key", "spec", "small", "group", 10, 5.0)
    records.submit(job)
    records.submit(job)
    for number in (1, 2):
        records.begin(Attempt(f"a{number}", "key", "pod", 1000.0 + number))
    assert [attempt.id for attempt in records.open_attempts()] == ["a1", "a2"]
    assert records.conclude(records.open_attempts()[1], 1010.0, "TRAINED", result={"n": 2})
    assert not records.conclude(records.open_attempts()[0], 1011.0, "TRAINED", result={"n": 1})
    found = records.job("key")
    assert found is not None
    assert found.result == {"n": 2}
    assert [ending for _, _, ending in records.attempts("key")] == ["TRAINED", "TRAINED"]
    records.reopen("key")
    assert records.job("key") == job
    assert records.job("other") is None


def test_a_baseline_is_kept(records: Records) -> None:
    assert records.baseline("k") is None
    records.keep_baseline("k", ["a", ""])
    records.keep_baseline("k", ["b", "b"])
    assert records.baseline("k") == ["a", ""]
