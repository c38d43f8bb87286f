"""What a job's process may answer, and the reason codes: untrusted JSON becomes rows, rewards or a `JobFault`.

Pure functions on the trusted side. Nothing that the untrusted side checked is taken for checked here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from trainwright.environment.environment import Reward, Row
from trainwright.errors import JobFault
from trainwright.messages import Message

ENVIRONMENT_FILE = "environment.py"

REASONS: Mapping[str, str] = {
    "import_error": "importing environment.py raised",
    "no_taskset": "`__all__` is missing, or exports not exactly one Taskset",
    "load_raised": "the taskset's construction, load(), or taking the next row raised",
    "bad_row": "a row is not a Task, or its prompt is missing, empty or not plain text",
    "row_too_large": "a row's prompt has too many characters",
    "no_reward": "the task has no @vf.reward",
    "reward_not_coroutine": "a reward or metric is not an `async def`",
    "reward_needs_runtime": "a reward or metric takes `runtime`, so verifiers would skip it in silence",
    "reward_raised": "a reward or metric raised",
    "reward_not_number": "a reward or metric returned what is no number",
    "reward_not_finite": "a reward is NaN or infinite",
    "reward_out_of_range": "a reward is finite but beyond the bound",
    "timeout": "a call took too long, or the job used up its CPU seconds",
    "memory": "the job ran out of memory",
    "input": "the job's files, or the replies to score, are too large for one frame",
    "output": "an answer is too large for one frame, not JSON, or has too many parts",
    "exited": "the job ended its own process",
    "killed": "the job's process died by a signal that we didn't send, such as a segmentation fault",
    "protocol": "the job's process said what no honest one says, or hung up",
}
"""Every reason code of a `JobFault` that an environment raises, with its meaning."""

_ROLES = ("system", "user", "assistant")
_MAX_NAMES, _MAX_NAME_CHARACTERS = 64, 100
_MAX_MESSAGE_CHARACTERS = 500


def parse_rows(answer: Mapping[str, Any], first: int, wanted: int, prompt_characters: int) -> list[Row]:
    """Return the rows of an answer to `rows`, numbered from `first`; raise `JobFault`."""
    found = answer.get("rows")
    if not isinstance(found, list) or len(found) > wanted:
        raise fault("protocol", "the answer to `rows` is not a list of as many rows or fewer")
    return [_row(row, first + position, prompt_characters) for position, row in enumerate(found)]


def parse_rewards(answer: Mapping[str, Any], wanted: int, elapsed: float, bound: float) -> list[Reward]:
    """Return the rewards of an answer to `score` that took `elapsed` seconds in all; raise `JobFault`."""
    found = answer.get("rewards")
    if not isinstance(found, list) or len(found) != wanted:
        raise fault("protocol", "the answer to `score` has not one reward a reply")
    return [_reward(reward, elapsed, bound) for reward in found]


def told_fault(told: object) -> JobFault:
    """Return the fault that the job's process reports, or the fault that it reports nonsense."""
    code, message, line = (
        (told.get(key) for key in ("code", "message", "line")) if isinstance(told, dict) else [None] * 3
    )
    if not isinstance(code, str) or code not in REASONS or not isinstance(message, str) or not isinstance(line, int):
        return fault("protocol", "the job's process reported a fault that is none")
    return fault(code, message, line if 0 < line < 10**6 else 0)


def fault(code: str, message: str, line: int = 0) -> JobFault:
    """Return a `JobFault` in environment.py whose message is one short line without control characters.

    The text may come from the job, and may end up on a terminal.
    """
    assert code in REASONS
    shown = re.sub(r"[\x00-\x20\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]+", " ", message).strip()
    return JobFault(code, shown[:_MAX_MESSAGE_CHARACTERS], ENVIRONMENT_FILE, line)


def _row(row: object, index: int, prompt_characters: int) -> Row:
    messages, fields = (row.get("messages"), row.get("fields")) if isinstance(row, dict) else (None, None)
    if not isinstance(messages, list) or not messages or not isinstance(fields, dict):
        raise fault("protocol", "a row has no messages or no fields")
    parsed = tuple(_message(message) for message in messages)
    size = sum(len(message["content"]) for message in parsed)
    if size > prompt_characters:
        raise fault("row_too_large", f"row {index} has {size} characters; at most {prompt_characters} are allowed")
    if not all(isinstance(text, str) for text in fields.values()):
        raise fault("protocol", "a field of a row is not text")
    return Row(index, parsed, fields)


def _message(message: object) -> Message:
    role, content = (message.get("role"), message.get("content")) if isinstance(message, dict) else (None, None)
    if role not in _ROLES or not isinstance(content, str):
        raise fault("protocol", "a message of a row has no role or no text")
    return {"role": role, "content": content}


def _reward(reward: object, elapsed: float, bound: float) -> Reward:
    parts, seconds = (reward.get("parts"), reward.get("seconds")) if isinstance(reward, dict) else (None, None)
    if not isinstance(parts, dict) or not parts:
        raise fault("protocol", "a reward has no parts")
    if len(parts) > _MAX_NAMES or any(len(name) > _MAX_NAME_CHARACTERS for name in parts):
        raise fault(
            "output", f"a reply has over {_MAX_NAMES} rewards, or a name over {_MAX_NAME_CHARACTERS} characters"
        )
    values = {name: _number(value) for name, value in parts.items()}
    total = sum(values.values())
    if not max(abs(total), *map(abs, values.values())) <= bound:
        raise fault("reward_out_of_range", f"a reward is {total:g}, beyond {bound:g}")
    return Reward(total, values, min(max(0.0, _number(seconds)), elapsed))


def _number(value: object) -> float:
    """Return a JSON number as a float; integers of any size are JSON, too."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise fault("protocol", "a number is due and is missing")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise fault("reward_not_finite", "a reward is too large for a float")
    return number
