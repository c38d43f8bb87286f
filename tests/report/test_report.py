"""The report: numbers of a ledger that was written by hand, and what lies in the folder afterwards."""

from __future__ import annotations

import io
import json
from collections.abc import Callable

import pytest

from trainwright.config import RunConfig
from trainwright.job.job import Job
from trainwright.ledger import Ledger
from trainwright.measure import t_quantile
from trainwright.report.report import (
    best_episode,
    family_table,
    held_out_points,
    held_out_result,
    summarise,
    write_report,
)
from trainwright.report.view import PlainView

MakeLedger = Callable[..., Ledger]


def report(config: RunConfig, ledger: Ledger) -> tuple[dict[str, object], str]:
    shown = io.StringIO()
    summary = write_report(config, ledger, config.folder, PlainView(shown))
    return summary, shown.getvalue()


def test_the_summary_holds_what_programs_read(config: RunConfig, make_ledger: MakeLedger) -> None:
    ledger = make_ledger()
    summary = summarise(config, ledger)
    assert summary["first_step_reward"] == 0.25
    assert summary["last5_reward"] == 0.375
    assert summary["last5_gain"] == pytest.approx(0.2)
    assert summary["validity"] == 0.5
    assert summary["jobs"] == 6
    assert summary["cpu_seconds_per_job"] == 0.75
    assert summary["jobs_per_minute"] == 6.0
    assert summary["wall_seconds"] == 60.0
    assert summary["sandbox"] == "full"
    assert summary["versions"] == {"trainwright": "0.1.0"}
    assert summary["students"] == {"nano-64": "abc"}
    assert summary["ledger_sha256"] == ledger.fingerprint()
    assert set(summary["held_out"]) == {"family", "before", "after", "difference", "ci95", "episodes_per_arm"}


def test_the_held_out_difference_is_paired(config: RunConfig, make_ledger: MakeLedger) -> None:
    result = held_out_result(config, make_ledger())
    assert result is not None
    assert (result["family"], result["episodes_per_arm"]) == ("shift", 2)
    assert (result["before"], result["after"]) == (pytest.approx(0.15), pytest.approx(0.45))
    assert result["difference"] == pytest.approx(0.3)
    half = t_quantile(0.975, 1) * 0.1  # differences 0.2 and 0.4: standard error 0.1
    assert result["ci95"] == [pytest.approx(0.3 - half), pytest.approx(0.3 + half)]


def test_a_pair_that_lost_a_side_is_left_out(
    config: RunConfig, make_ledger: MakeLedger, add_episode: Callable[..., None]
) -> None:
    ledger = make_ledger()
    add_episode(ledger, "probe-before-0000-002-0", "probe-before", 0, "shift", gain=0.3)
    add_episode(ledger, "probe-after-0002-002-0", "probe-after", 2, "shift", outcome="INFRA", gain=0.0, reward=None)
    add_episode(ledger, "probe-before-0000-003-0", "probe-before", 0, "shift", gain=0.9)  # its partner is missing
    result = held_out_result(config, ledger)
    assert result is not None
    assert result["episodes_per_arm"] == 2
    assert result["difference"] == pytest.approx(0.3)


def test_a_rejected_probe_counts_as_no_gain(
    config: RunConfig, make_ledger: MakeLedger, add_episode: Callable[..., None]
) -> None:
    ledger = make_ledger()
    add_episode(ledger, "probe-before-0000-002-0", "probe-before", 0, "shift", gain=0.3)
    add_episode(ledger, "probe-after-0002-002-0", "probe-after", 2, "shift", outcome="REJECTED", gain=0.0)
    result = held_out_result(config, ledger)
    assert result is not None
    assert result["episodes_per_arm"] == 3
    assert result["difference"] == pytest.approx((0.2 + 0.4 - 0.3) / 3)


def test_points_are_one_a_probe(make_ledger: MakeLedger, add_episode: Callable[..., None]) -> None:
    ledger = make_ledger()
    add_episode(ledger, "probe-0001-000-0", "probe", 1, "shift", gain=0.7)
    assert [(step, value.count) for step, value in held_out_points(ledger)] == [(0, 2), (1, 1), (2, 2)]


def test_the_table_has_a_row_a_family(make_ledger: MakeLedger) -> None:
    lines = family_table(make_ledger())
    assert [line.split()[0] for line in lines[2:]] == ["shift", "sort"]
    assert "(held out)" in lines[2]
    assert "nan" not in "\n".join(lines)
    sort = lines[3].split()
    assert sort[1] == "0.200"
    assert sort[-1] == "2"
    assert "0.625" in sort  # the mean gain


def test_the_best_job_is_the_one_with_the_highest_gain(
    config: RunConfig, make_ledger: MakeLedger, add_episode: Callable[..., None]
) -> None:
    ledger = make_ledger()
    best = best_episode(ledger)
    assert best is not None
    assert best.id == "train-0001-0-0"
    report(config, ledger)
    first = Job.load(config.folder / "best-job")
    add_episode(ledger, "train-0001-2-0", "train", 1, "reverse", gain=1.0)
    _, shown = report(config, ledger)  # a run that went on replaces it
    assert Job.load(config.folder / "best-job") != first
    assert f"trainwright train {config.folder / 'best-job'} --task reverse:1" in shown


def test_the_folder_holds_the_report(config: RunConfig, make_ledger: MakeLedger) -> None:
    summary, shown = report(config, make_ledger())
    assert json.loads((config.folder / "summary.json").read_text()) == summary
    assert len((config.folder / "metrics.jsonl").read_text().splitlines()) == 2
    assert (config.folder / "curve.png").stat().st_size > 1000
    assert (config.folder / "best-job" / "environment.py").is_file()
    assert "mean reward a step" in shown
    assert "held-out shift: gain 0.150 before, 0.450 after, difference +0.300" in shown


def test_a_run_of_nothing_has_a_report_of_nothing(config: RunConfig, make_ledger: MakeLedger) -> None:
    summary, _ = report(config, make_ledger(filled=False))
    assert summary["steps"] == summary["jobs"] == 0
    for name in ("first_step_reward", "last5_reward", "held_out", "cpu_seconds_per_job", "jobs_per_minute"):
        assert summary[name] is None
    assert not (config.folder / "best-job").exists()
    assert "NaN" not in (config.folder / "summary.json").read_text()
