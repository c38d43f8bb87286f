"""The table `train.toml`: every knob a job may set, with its range, default and meaning in one place."""

from __future__ import annotations

import difflib
import re
import tomllib
from dataclasses import dataclass, fields
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_type_hints

from trainwright.errors import JobRejected
from trainwright.job.answer import TRAIN
from trainwright.suites.family import Task

ALIASES = {
    "lr": "learning_rate",
    "steps": "max_steps",
    "num_steps": "max_steps",
    "num_generations": "group_size",
    "rollouts_per_example": "group_size",
    "max_tokens": "max_completion_tokens",
    "max_new_tokens": "max_completion_tokens",
    "rank": "lora_rank",
    "alpha": "lora_alpha",
    "target_modules": "lora_target",
    "model": "student",
}
"""What other trainers call these knobs: used to suggest the right name, never accepted."""


@dataclass(frozen=True)
class Range:
    """The closed interval of numbers that a knob accepts."""

    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high  # false for NaN

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}".replace("e-0", "e-")


@dataclass(frozen=True)
class Hyperparameters:
    """Resolved and valid hyperparameters of one job (defaults filled in)."""

    student: Annotated[str, "The student to train, one of those the task offers."]
    learning_rate: Annotated[float, Range(1e-6, 0.1), "AdamW's learning rate after the warm-up."] = 5e-4
    max_steps: Annotated[int, Range(1, 2000), "Optimizer steps."] = 15
    batch_size: Annotated[int, Range(8, 1024), "Rollouts (sampled completions) a step."] = 64
    group_size: Annotated[int, Range(2, 64), "Rollouts a prompt; divides `batch_size`."] = 8
    temperature: Annotated[float, Range(0.1, 2.0), "Sampling temperature in training."] = 1.0
    max_completion_tokens: Annotated[int, Range(1, 32768), "Tokens a completion may have, within the task's limit."] = (
        16
    )
    weight_decay: Annotated[float, Range(0.0, 1.0), "AdamW's decoupled weight decay."] = 0.0
    max_grad_norm: Annotated[float, Range(0.01, 100.0), "Gradients are clipped to this norm."] = 1.0
    warmup_steps: Annotated[int, Range(0, 1000), "Steps of linear warm-up, at most `max_steps`."] = 0
    lora_rank: Annotated[int, Range(0, 64), "Rank of the LoRA adapter; 0 trains all weights."] = 16
    lora_alpha: Annotated[float, Range(1.0, 256.0), "The adapter's output is scaled by alpha / rank."] = 32.0
    lora_target: Annotated[Literal["attention", "mlp", "all"], "The linear layers that get an adapter."] = "all"
    advantage: Annotated[
        Literal["mean", "mean_std"], "Reward minus the group's mean, or that divided by the group's deviation."
    ] = "mean"

    @property
    def rollouts(self) -> int:
        """Return the completions the job samples in all: steps x rollouts a step."""
        return self.max_steps * self.batch_size


@dataclass(frozen=True)
class _Knob:
    """One field of `Hyperparameters` as its annotation declares it. `values` are the words a Literal allows."""

    name: str
    kind: type
    default: Any
    meaning: str
    range: Range | None = None
    values: tuple[str, ...] = ()

    def fits(self, value: Any) -> bool:
        """Whether the value has the knob's type; an integer passes for a number."""
        accepted = (int, float) if self.kind is float else self.kind
        return isinstance(value, accepted) and not isinstance(value, bool)

    def allows(self, value: Any) -> bool:
        """Whether a value of the right type is in range."""
        return (self.range is None or value in self.range) and (not self.values or value in self.values)

    @property
    def allowed(self) -> str:
        """Say which values the knob takes."""
        if self.values:
            return " or ".join(f'"{value}"' for value in self.values)
        article = "an integer" if self.kind is int else "a number"
        return f"{article} from {self.range}" if self.range else "a string"


@cache
def _knobs() -> dict[str, _Knob]:
    hints = get_type_hints(Hyperparameters, include_extras=True)
    found = {}
    for item in fields(Hyperparameters):
        kind, *notes = get_args(hints[item.name])
        span = notes[0] if isinstance(notes[0], Range) else None
        values = get_args(kind)
        found[item.name] = _Knob(item.name, str if values else kind, item.default, notes[-1], span, values)
    return found


def parse_hyperparameters(text: str, task: Task) -> Hyperparameters:
    """Return the hyperparameters in `train.toml`, checked against their ranges and the task's offers.

    `student` defaults to the task's first offer and `max_completion_tokens` to the task's limit. Raises `JobRejected`
    with a code of toml_syntax, toml_table, toml_key, toml_type, toml_range, toml_divide, student, budget.
    """
    defaults: dict[str, Any] = {"student": task.offers[0].student, "max_completion_tokens": task.max_completion_tokens}
    written = {name: _valid(name, value, text) for name, value in _parsed(text).items()}
    chosen = Hyperparameters(**(defaults | written))

    def reject(code: str, key: str, message: str) -> JobRejected:
        return JobRejected(code, message, TRAIN, _line_of(key, text))

    budgets = {offer.student: offer.rollout_budget for offer in task.offers}
    if chosen.student not in budgets:
        offered = ", ".join(map(_shown, budgets))
        raise reject("student", "student", f"{_shown(chosen.student)} is not offered for this task; choose {offered}.")
    for key, limit, name in (
        ("max_completion_tokens", task.max_completion_tokens, "the task's limit"),
        ("warmup_steps", chosen.max_steps, "max_steps"),
    ):
        if getattr(chosen, key) > limit:
            message = f"{key} = {getattr(chosen, key)} is more than {name}; use at most {limit}."
            raise reject("toml_range", key, message)
    if chosen.batch_size % chosen.group_size:
        message = (
            f"group_size = {chosen.group_size} does not divide batch_size = {chosen.batch_size}; "
            f"{_divisors(chosen.batch_size)}."
        )
        raise reject("toml_divide", "group_size", message)
    budget = budgets[chosen.student]
    if chosen.rollouts > budget:
        message = (
            f"max_steps x batch_size = {chosen.max_steps} x {chosen.batch_size} = {chosen.rollouts} rollouts, more "
            f"than the budget of {budget} for {chosen.student}; {_within(budget, chosen.batch_size)}."
        )
        raise reject("budget", "max_steps", message)
    return chosen


def hyperparameter_table() -> str:
    """Return the knobs as a Markdown table: the one text that the documentation and every brief show."""
    defaults = {"student": "the first offered", "max_completion_tokens": "the task's limit"}
    rows = ["| key | type | allowed | default | meaning |", "|---|---|---|---|---|"]
    for knob in _knobs().values():
        kind = {int: "integer", float: "number", str: "string"}[knob.kind]
        words = ", ".join(f'`"{value}"`' for value in knob.values)
        allowed = words or str(knob.range or "an offered one")
        default = defaults.get(knob.name) or f"`{_toml(knob.default)}`"
        rows.append(f"| `{knob.name}` | {kind} | {allowed} | {default} | {knob.meaning} |")
    return "\n".join(rows) + "\n"


def _parsed(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"\(at (?:line (\d+), column \d+|end of document)\)", str(error))
        line = int(place[1] or text.count("\n") + 1) if place else 0
        reason = re.sub(r"\s*\(at .*\)$", "", str(error))
        detail = f"This is not TOML: {reason}; write one `key = value` a line."
        raise JobRejected("toml_syntax", detail, TRAIN, line) from None
    except (ValueError, RecursionError):  # an integer of thousands of digits; brackets nested hundreds deep
        message = "A value is too long or nested too deep; write plain numbers."
        raise JobRejected("toml_syntax", message, TRAIN) from None


def _valid(name: str, value: Any, text: str) -> Any:
    """Return the value of one key in its knob's own type; raise `JobRejected`."""
    line = _line_of(name, text)
    knob = _knobs().get(name)
    if knob is None and isinstance(value, dict | list):
        message = f"{_shown(name)} is a table or list; write the keys at the top level, without a header."
        raise JobRejected("toml_table", message, TRAIN, line)
    if knob is None:
        raise JobRejected("toml_key", f"Unknown key {_shown(name)}; {_suggestion(name)}", TRAIN, line)
    shown = f"{name} = {_shown(value)}"
    if not knob.fits(value):
        raise JobRejected("toml_type", f"{shown} is {_kind_of(value)}; it must be {knob.allowed}.", TRAIN, line)
    if not knob.allows(value):
        raise JobRejected("toml_range", f"{shown} is not allowed; it must be {knob.allowed}.", TRAIN, line)
    return knob.kind(value)


def _suggestion(name: str) -> str:
    close = ALIASES.get(name.lower()) or next(iter(difflib.get_close_matches(name[:64], _knobs(), n=1)), None)
    return f"did you mean {close}?" if close else f"the keys are {', '.join(_knobs())}."


def _divisors(batch_size: int) -> str:
    """Say which group sizes divide a batch size."""
    sizes = [str(size) for size in range(2, 65) if batch_size % size == 0]
    return f"use a group_size of {', '.join(sizes)}" if sizes else "use an even batch_size"


def _within(budget: int, batch_size: int) -> str:
    """Say which change of one knob keeps the budget."""
    if budget >= batch_size:
        return f"use max_steps = {budget // batch_size} or fewer, or a smaller batch_size"
    return f"use a batch_size of at most {budget}"


def _line_of(key: str, text: str) -> int:
    """Return the line that sets a key, 0 when none plainly does."""
    match = re.search(rf"""^[ \t]*\[*[ \t]*["']?{re.escape(key)}["']?[ \t]*[]=.]""", text, re.MULTILINE)
    return text.count("\n", 0, match.start()) + 1 if match else 0


def _shown(value: object) -> str:
    try:
        shown = _toml(value)
    except ValueError:  # more digits than Python prints
        return "a huge number"
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def _kind_of(value: object) -> str:
    kinds = {bool: "a boolean", int: "an integer", float: "a number", str: "a string", list: "a list", dict: "a table"}
    return kinds.get(type(value), "a date or time")
