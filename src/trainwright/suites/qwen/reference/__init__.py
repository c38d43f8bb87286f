"""Reference jobs: for each family the `environment.py` that a competent person would write from the brief alone.

Each is a real module, so that it is linted and tested as code. Two lines change when it becomes a job: `PARAMETERS`
takes the task's values, and the import of the family's partial-credit helper becomes the helper itself, because a job
can import nothing of ours.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib.resources import files

from trainwright.suites.family import Parameter


def environment_text(topic: str, parameters: Mapping[str, Parameter], helper: Callable[[str, str], float]) -> str:
    """Return the reference `environment.py` of a family for a task's parameters, complete in itself."""
    text = files(__package__).joinpath(f"{topic}.py").read_text(encoding="utf-8")
    replacements = {
        f"from {helper.__module__} import {helper.__name__}\n": f"\n{inspect.getsource(helper)}\n",
        "PARAMETERS = ": f"PARAMETERS = {dict(parameters)!r}\n",
        "# mypy: ": "",
    }
    return "".join(
        next((new for start, new in replacements.items() if line.startswith(start)), line)
        for line in text.splitlines(keepends=True)
    )
