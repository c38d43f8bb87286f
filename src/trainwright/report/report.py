"""What a run leaves behind: a table and a curve for people, `summary.json` for programs, the best job as a folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from statistics import fmean
from typing import Any

from trainwright.cache import write_atomically
from trainwright.config import RunConfig
from trainwright.job.job import Job
from trainwright.ledger import Episode, Ledger
from trainwright.loop import AFTER, BEFORE, TRAIN
from trainwright.measure import Estimate, estimate, interval95, paired_difference
from trainwright.pools.pool import OutcomeClass
from trainwright.report.curve import text_curve, write_png
from trainwright.report.money import Money
from trainwright.report.view import View

LAST_STEPS = 5


def write_report(config: RunConfig, ledger: Ledger, folder: Path, view: View) -> dict[str, Any]:
    """Write the report's files, show the table and the curve, and return what `summary.json` holds."""
    ledger.write_metrics(folder / "metrics.jsonl")
    summary = summarise(config, ledger)
    write_atomically(folder / "summary.json", json.dumps(summary, indent=2).encode() + b"\n")
    rewards = [step.metrics["reward"] for step in ledger.steps()]
    gains = [step.metrics["gain"] for step in ledger.steps()]
    view.close()
    for line in family_table(ledger):
        view.note(line)
    for line in Money.of(ledger).lines():
        view.note(line)
    if rewards:
        write_png(folder / "curve.png", rewards, gains, held_out_points(ledger), config.tasks.held_out)
        for line in text_curve(rewards, "mean reward a step"):
            view.note(line)
    held_out = summary["held_out"]
    if held_out is not None:
        low, high = held_out["ci95"]
        view.note(
            f"held-out {held_out['family']}: gain {held_out['before']:.3f} before, {held_out['after']:.3f} after, "
            f"difference {held_out['difference']:+.3f} (95 % interval {low:+.3f} to {high:+.3f}, "
            f"{held_out['episodes_per_arm']} paired episodes an arm)"
        )
    best = best_episode(ledger)
    if best is not None:
        shutil.rmtree(folder / "best-job", ignore_errors=True)  # of a run that had fewer steps
        Job.parse(ledger.attempts(best.id)[-1].completion.text).write(folder / "best-job")
        task = next(group for group in ledger.groups() if group["id"] == best.group_id)
        view.note(f"best job: {folder / 'best-job'} ({best.id}, gain {best.gain:+.2f}); look closer with")
        view.note(f"  trainwright train {folder / 'best-job'} --task {best.family}:{task['task']['seed']}")
    return summary


def summarise(config: RunConfig, ledger: Ledger) -> dict[str, Any]:
    """Return the run's numbers for programs; means over steps that were committed, None where there is nothing."""
    steps = ledger.steps()
    episodes = ledger.all_episodes()
    trained = [episode for episode in episodes if episode.outcome == OutcomeClass.TRAINED]
    wall = float(ledger.get("wall_seconds", 0.0))
    return {
        "seed": config.seed,
        "steps": len(steps),
        "first_step_reward": steps[0].metrics["reward"] if steps else None,
        "last5_reward": _last(steps, "reward"),
        "last5_gain": _last(steps, "gain"),
        "validity": _last(steps, "validity"),
        "held_out": held_out_result(config, ledger),
        "jobs": len(trained),
        "cpu_seconds_per_job": _mean([sum(episode.cpu_seconds.values()) for episode in trained if episode.cpu_seconds]),
        "jobs_per_minute": 60 * len(trained) / wall if wall else None,
        "wall_seconds": wall,
        "usd": Money.of(ledger).summary(),
        "infra_dropped": sum(episode.outcome == OutcomeClass.INFRA for episode in episodes),
        "sandbox": ledger.get("sandbox"),
        "versions": ledger.get("versions"),
        "students": ledger.get("students"),
        "ledger_sha256": ledger.fingerprint(),
    }


def held_out_result(config: RunConfig, ledger: Ledger) -> dict[str, Any] | None:
    """Return the held-out family's gain before and after training with a 95 % interval of the paired difference.

    Pairs in which either episode was lost to infrastructure are left out. None when there are fewer than two pairs.
    """
    before = {_task_number(episode): episode for episode in ledger.episodes(BEFORE)}
    after = {_task_number(episode): episode for episode in ledger.episodes(AFTER, len(ledger.steps()))}
    pairs = [
        (before[key].gain, after[key].gain)
        for key in sorted(before.keys() & after.keys())
        if OutcomeClass.INFRA not in (before[key].outcome, after[key].outcome)
    ]
    if len(pairs) < 2:
        return None
    firsts, seconds = zip(*pairs, strict=True)
    difference = paired_difference(firsts, seconds)
    return {
        "family": config.tasks.held_out,
        "before": fmean(firsts),
        "after": fmean(seconds),
        "difference": difference.mean,
        "ci95": list(interval95(difference)),
        "episodes_per_arm": len(pairs),
    }


def held_out_points(ledger: Ledger) -> list[tuple[int, Estimate]]:
    """Return `(steps done, gain)` of every held-out probe."""
    gains: dict[int, list[float]] = {}
    for episode in ledger.all_episodes():
        if episode.arm != TRAIN and episode.outcome != OutcomeClass.INFRA:
            gains.setdefault(episode.step, []).append(episode.gain)
    return [(step, estimate(gains[step])) for step in sorted(gains)]


def family_table(ledger: Ledger) -> list[str]:
    """Return the table of the last steps' trained jobs a family, and of the final held-out probe."""
    steps = ledger.steps()
    first = max(len(steps) - LAST_STEPS, 0)
    episodes = [episode for episode in ledger.episodes(TRAIN) if episode.step >= first]
    episodes += ledger.episodes(AFTER, len(steps))
    rows: dict[str, list[Episode]] = {}
    for episode in episodes:
        if episode.outcome == OutcomeClass.TRAINED:
            label = f"{episode.family} (held out)" if episode.arm == AFTER else episode.family
            rows.setdefault(label, []).append(episode)
    lines = [f"trained jobs of the last {LAST_STEPS} steps, mean ± standard error over jobs:"]
    lines.append(f"  {'family':22} {'before':>14} {'after':>14} {'uplift':>14} {'gain':>14} {'n':>5}")
    for label in sorted(rows):
        members = rows[label]
        columns = (
            estimate([episode.pre or 0.0 for episode in members]),
            estimate([episode.post or 0.0 for episode in members]),
            estimate([(episode.post or 0.0) - (episode.pre or 0.0) for episode in members]),
            estimate([episode.gain for episode in members]),
        )
        cells = " ".join(_cell(value) for value in columns)
        lines.append(f"  {label:22} {cells} {len(members):>5}")
    return lines if rows else []


def _cell(value: Estimate) -> str:
    error = f"± {value.standard_error:.3f}" if value.count > 1 else ""
    return f"{value.mean:>6.3f} {error:7}"


def best_episode(ledger: Ledger) -> Episode | None:
    """Return the training episode with the highest gain; on a tie the one with the highest score after training."""
    trained = [episode for episode in ledger.episodes(TRAIN) if episode.outcome == OutcomeClass.TRAINED]
    return max(trained, key=lambda episode: (episode.gain, episode.post or 0.0), default=None)


def _task_number(episode: Episode) -> str:
    """Return what the episodes of all probes on one task share."""
    return episode.group_id.rpartition("-")[2]


def _last(steps: list[Any], name: str) -> float | None:
    return _mean([step.metrics[name] for step in steps[-LAST_STEPS:]])


def _mean(values: list[float]) -> float | None:
    return fmean(values) if values else None
