"""What no job may read, wherever it is installed: this project, and every package that provides a task family.

A family's code draws the hidden items. In an installation without source tree it lies among the libraries that jobs
need, so the sandbox takes these paths out of what it shows.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

FAMILY_GROUPS = ("trainwright.families", "trainwright.family_factories")
HIDDEN_SUFFIX = "_hidden"
"""A package `mine` may keep hidden templates and word lists in a top-level package `mine_hidden`, as this one does."""


@cache
def withheld() -> tuple[Path, ...]:
    """Return the real paths of the packages' folders, and of single-file modules and their compiled forms."""
    own = __name__.partition(".")[0]
    providers = {point.module.partition(".")[0] for group in FAMILY_GROUPS for point in entry_points(group=group)}
    names = {name + suffix for name in {own, *providers} for suffix in ("", HIDDEN_SUFFIX)}
    return tuple(sorted({path.resolve() for name in names for path in _locations(name)}))


def _locations(name: str) -> Iterator[Path]:
    """Yield the paths of a top-level module without importing it; none when it isn't installed."""
    spec = importlib.util.find_spec(name)
    if spec is None:
        return
    if spec.submodule_search_locations is not None:
        yield from map(Path, spec.submodule_search_locations)
    else:
        yield from (Path(file) for file in (spec.origin, spec.cached) if file)
