"""docs/job-format.md as text: what the briefs of large agents quote."""

from __future__ import annotations

from functools import cache
from pathlib import Path

NAME = "job-format.md"
CODES = "\n### Codes\n"


@cache
def job_format(*, codes: bool = True) -> str:
    """Return the specification of jobs, Markdown: from the installed package, or from docs/ in a source checkout.

    Without `codes` its last part is left out, the tables of reason codes: a refusal says more than its code.
    """
    installed = Path(__file__).with_name(NAME)
    checkout = Path(__file__).parents[3] / "docs" / NAME
    text = (installed if installed.exists() else checkout).read_text(encoding="utf-8")
    return text if codes else text.partition(CODES)[0]
