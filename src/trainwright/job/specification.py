"""docs/job-format.md as text: what the briefs of large agents quote."""

from __future__ import annotations

from functools import cache
from pathlib import Path

NAME = "job-format.md"


@cache
def job_format() -> str:
    """Return the specification of jobs, Markdown: from the installed package, or from docs/ in a source checkout."""
    installed = Path(__file__).with_name(NAME)
    checkout = Path(__file__).parents[3] / "docs" / NAME
    return (installed if installed.exists() else checkout).read_text(encoding="utf-8")
