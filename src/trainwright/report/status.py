"""`trainwright status`: where a run stands, from its ledger alone."""

from __future__ import annotations

import fcntl
from collections import Counter
from pathlib import Path

from trainwright.config import parse_config
from trainwright.errors import ConfigError
from trainwright.ledger import Ledger
from trainwright.loop import TRAIN
from trainwright.report.curve import text_curve
from trainwright.report.money import Money
from trainwright.report.report import family_table, held_out_points
from trainwright.report.view import duration


def print_status(folder: Path) -> None:
    """Print steps done, the latest numbers, outcomes by class and the reward curve; raise `ConfigError`."""
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such run folder")
    ledger = Ledger(folder / "ledger.sqlite", read_only=True)
    try:
        config = parse_config(ledger.get("config", {}), str(folder / "ledger.sqlite"))
        steps = ledger.steps()
        state = "working" if _in_use(folder) else "finished" if len(steps) >= config.steps else "stopped"
        sandbox = ledger.get("sandbox", "not built yet")
        print(f"{folder}: {state}, {len(steps)} of {config.steps} steps, seed {config.seed}, sandbox {sandbox}")
        outcomes = Counter(episode.outcome for episode in ledger.all_episodes())
        print("episodes: " + (", ".join(f"{count} {name}" for name, count in sorted(outcomes.items())) or "none yet"))
        if steps:
            last = steps[-1]
            unfinished = [episode for episode in ledger.episodes(TRAIN) if episode.step > last.step]
            print(
                f"step {last.step + 1}: reward {last.metrics['reward']:+.3f}, gain {last.metrics['gain']:+.3f}, "
                f"valid {last.metrics['validity']:.0%}; {len(unfinished)} episodes of the next step are done"
            )
            print(f"time in committed steps: {duration(sum(step.wall_seconds for step in steps))}")
            for line in text_curve([step.metrics["reward"] for step in steps], "mean reward a step"):
                print(line)
        for step, value in held_out_points(ledger):
            print(f"held-out {config.tasks.held_out} after {step} steps: gain {value}")
        for line in [*family_table(ledger), *Money.of(ledger).lines()]:
            print(line)
    finally:
        ledger.close()


def _in_use(folder: Path) -> bool:
    try:
        with open(folder / ".lock") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
