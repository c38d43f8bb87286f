"""What a run shows while it works: plain lines for logs, or a live table in a terminal."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TextIO

if TYPE_CHECKING:
    from rich.console import RenderableType

from trainwright.ledger import Episode

ROWS_SHOWN = 12


class View(Protocol):
    """Receives what happens; shows it or not."""

    def note(self, text: str) -> None:
        """Show one line."""
        ...

    def progress(self, label: str) -> Callable[[int, int], None]:
        """Return a function that is told the steps done and the steps in all."""
        ...

    def episode(self, episode: Episode) -> None:
        """Take a finished episode."""
        ...

    def step(self, step: int, steps: int, metrics: dict[str, Any], seconds: float) -> None:
        """Take a committed step, counted from 1."""
        ...

    def probe(self, arm: str, family: str, gain: float, episodes: int) -> None:
        """Take the mean gain of a held-out probe."""
        ...

    def close(self) -> None:
        """Give the terminal back."""
        ...


@dataclass
class Tally:
    """The numbers that both views show."""

    started: float = field(default_factory=time.monotonic)
    jobs: int = 0
    first_step: int | None = None
    first_step_at: float = 0.0
    held_out: float = math.nan

    def jobs_per_minute(self) -> float:
        """Return trained jobs a minute since the start of the view."""
        return 60 * self.jobs / max(time.monotonic() - self.started, 1e-9)

    def remaining(self, step: int, steps: int, seconds: float) -> float:
        """Return the seconds left by the pace of the steps seen; the first one's own time until there are two."""
        now = time.monotonic()
        if self.first_step is None or step <= self.first_step:
            self.first_step, self.first_step_at = step, now
            return seconds * (steps - step)
        return (now - self.first_step_at) / (step - self.first_step) * (steps - step)


def duration(seconds: float) -> str:
    """Return seconds as `1:05` or `2:03:04`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class PlainView:
    """One line an event, for logs and pipes."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._tally = Tally()
        self._verdict = ""

    def note(self, text: str) -> None:
        """Print the line."""
        print(text, file=self._stream, flush=True)

    def progress(self, label: str) -> Callable[[int, int], None]:
        """Print at each quarter."""
        shown = [0]

        def update(done: int, total: int) -> None:
            quarter = 4 * done // max(total, 1)
            if quarter > shown[0]:
                shown[0] = quarter
                self.note(f"{label}: {25 * quarter} %")

        return update

    def episode(self, episode: Episode) -> None:
        """Remember the verdict; a log line an episode would drown the steps."""
        self._tally.jobs += episode.outcome == "TRAINED"
        self._verdict = verdict_line(episode)

    def step(self, step: int, steps: int, metrics: dict[str, Any], seconds: float) -> None:
        """Print the step's numbers."""
        left = self._tally.remaining(step, steps, seconds)
        self.note(
            f"step {step}/{steps}  reward {metrics['reward']:+.3f}  gain {metrics['gain']:+.3f}  "
            f"valid {metrics['validity']:.0%}  faults {metrics['job_faults']:.0%}  dropped {metrics['infra_dropped']}  "
            f"{self._tally.jobs_per_minute():.0f} jobs/min  left {duration(left)}  last: {self._verdict}"
        )

    def probe(self, arm: str, family: str, gain: float, episodes: int) -> None:
        """Print the probe's gain."""
        self.note(f"{arm}: held-out {family} gain {gain:+.3f} (n={episodes})")

    def close(self) -> None:
        """Nothing to give back."""


class LiveView:
    """A table of the latest steps that redraws in place (rich)."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._tally = Tally()
        self._rows: list[tuple[str, ...]] = []
        self._status = self._verdict = ""
        self._live = Live(console=Console(), refresh_per_second=4, get_renderable=self._render)
        self._live.start()

    def note(self, text: str) -> None:
        """Print the line above the table."""
        self._live.console.print(text, markup=False, highlight=False)

    def progress(self, label: str) -> Callable[[int, int], None]:
        """Show the share done in the status line."""

        def update(done: int, total: int) -> None:
            filled = 30 * done // max(total, 1)
            self._status = f"{label}  {'█' * filled}{'░' * (30 - filled)}  {done}/{total}" if done < total else ""

        return update

    def episode(self, episode: Episode) -> None:
        """Show the last job's verdict."""
        self._tally.jobs += episode.outcome == "TRAINED"
        self._verdict = verdict_line(episode)
        self._status = f"{episode.arm}: {episode.id} done"

    def step(self, step: int, steps: int, metrics: dict[str, Any], seconds: float) -> None:
        """Add a row."""
        left = self._tally.remaining(step, steps, seconds)
        held_out = "" if math.isnan(self._tally.held_out) else f"{self._tally.held_out:+.3f}"
        self._rows.append(
            (
                f"{step}/{steps}", f"{metrics['reward']:+.3f}", f"{metrics['gain']:+.3f}", f"{metrics['validity']:.0%}",
                f"{metrics['job_faults']:.0%}", held_out, f"{self._tally.jobs_per_minute():.0f}", duration(left),
            )
        )  # fmt: skip

    def probe(self, arm: str, family: str, gain: float, episodes: int) -> None:
        """Print the probe's gain and keep it for the table."""
        self._tally.held_out = gain
        self.note(f"{arm}: held-out {family} gain {gain:+.3f} (n={episodes})")

    def close(self) -> None:
        """Stop redrawing; the table stays."""
        self._status = ""
        self._live.stop()

    def _render(self) -> RenderableType:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False)
        for name in ("step", "reward", "gain", "valid", "faults", "held-out gain", "jobs/min", "left"):
            table.add_column(name, justify="right")
        for row in self._rows[-ROWS_SHOWN:]:
            table.add_row(*row)
        parts: list[RenderableType] = [table] if self._rows else []
        if self._status:
            parts.append(Text(self._status, style="dim"))
        if self._verdict:
            parts.append(Text(f"last job: {self._verdict}", style="dim", overflow="ellipsis", no_wrap=True))
        return Group(*parts)


def verdict_line(episode: Episode) -> str:
    """Return what became of an episode's job in one line."""
    if episode.outcome == "TRAINED" and episode.pre is not None and episode.post is not None:
        return f"{episode.family} {episode.pre:.2f} -> {episode.post:.2f}, gain {episode.gain:+.2f}"
    return f"{episode.family} {episode.outcome} {episode.detail or episode.reason}"


def make_view(plain: bool) -> View:
    """Return the live view on a terminal, the plain one elsewhere or on request."""
    return PlainView() if plain or not sys.stdout.isatty() else LiveView()
