"""The reward curve, as a picture and as text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trainwright.measure import Estimate

HEIGHT = 10


def text_curve(values: Sequence[float], title: str) -> list[str]:
    """Return the lines of a bar curve, one column a value, with its range at the left."""
    low, high = min(0.0, *values), max(*values, 0.0)
    span = (high - low) or 1.0
    eighths = [round((value - low) / span * HEIGHT * 8) for value in values]
    lines = [title]
    for row in range(HEIGHT - 1, -1, -1):
        label = {HEIGHT - 1: f"{high:+.2f}", 0: f"{low:+.2f}"}.get(row, "")
        cells = "".join(" ▁▂▃▄▅▆▇█"[min(max(value - 8 * row, 0), 8)] * 2 for value in eighths)
        lines.append(f"{label:>6} │{cells}")
    return [*lines, f"{'':6} └{'──' * len(values)} step {len(values)}"]


def write_png(
    path: Path, rewards: Sequence[float], gains: Sequence[float], held_out: Sequence[tuple[int, Estimate]], family: str
) -> None:
    """Draw reward and gain a step, and the held-out gain with its standard error, to a PNG file."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    steps = range(1, len(rewards) + 1)
    axes.plot(steps, rewards, color="tab:blue", linewidth=2, label="mean reward")
    axes.plot(steps, gains, color="tab:orange", linewidth=1.2, label="mean gain")
    if held_out:
        axes.errorbar(
            [step for step, _ in held_out],
            [value.mean for _, value in held_out],
            yerr=[value.standard_error for _, value in held_out],
            fmt="o--",
            color="tab:green",
            capsize=3,
            label=f"held-out gain ({family}), ± standard error",
        )
    axes.axhline(0, color="grey", linewidth=0.6)
    axes.set_xlabel("step")
    axes.set_ylabel("reward, gain (1.0 = reference job)")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)
