"""A job's taskset and its rewards, through verifiers 0.4.0 (its v1 API); the only module that touches verifiers.

A reward means here what it means in verifiers: `Task.score` runs on a hand-made trace, so weights, priorities, dict
rewards and metrics are verifiers' own. What verifiers would turn into a silent 0 (an error, None, a skipped reward)
is a `Fault` here. Checked against verifiers 0.4.0: task.py, taskset.py, trace.py, utils/decorators.py.

Runs on the untrusted side, in the same process as the job's code: nothing said here is to be trusted.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import math
import random
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, SupportsFloat

import numpy
import verifiers.v1 as vf
from pydantic import PrivateAttr
from verifiers.v1.graph import MessageNode
from verifiers.v1.state import state_cls
from verifiers.v1.utils.generic import concrete_type
from verifiers.v1.utils.score import verify_boxed_math_answer

PACKAGE, MODULE = "job", "environment.py"
FIELDS_LIMIT, FIELD_CHARACTERS = 8, 4096
"""What is sent along with a row; further and longer fields stay inside."""

_EXHAUSTED = object()
_AGENT = vf.AgentInfo(config=vf.AgentConfig())
_ROLES: dict[type, str] = {vf.SystemMessage: "system", vf.UserMessage: "user", vf.AssistantMessage: "assistant"}


class Fault(Exception):
    """The job did something it must not: a reason code of `answers.REASONS`, one sentence, and a line if known."""

    def __init__(self, code: str, message: str, line: int = 0) -> None:
        super().__init__(code, message, line)
        self.code, self.message, self.line = code, message, line


class CheckedTrace(vf.Trace):  # type: ignore[misc]
    """A trace that refuses a score that verifiers would record but nobody can learn from."""

    _lines: dict[str, int] = PrivateAttr(default_factory=dict)
    """Where each reward and metric is defined."""

    def record_reward(self, name: str, value: Any, weight: float = 1.0) -> None:
        self._check_number("reward", name, value)
        if not math.isfinite(float(value) * float(weight)):
            message = f"reward {name!r} returned {float(value)}, with a weight of {weight}; return a finite float"
            raise Fault("reward_not_finite", message, self._lines.get(name, 0))
        super().record_reward(name, value, weight)

    def record_metric(self, name: str, value: Any) -> None:
        self._check_number("metric", name, value)
        super().record_metric(name, value)

    def _check_number(self, kind: str, name: str, value: Any) -> None:
        if isinstance(value, float | int):
            return  # asking a protocol takes as long as a simple reward
        if not isinstance(value, SupportsFloat):  # verifiers would read the string "1.0" as 1.0
            message = f"{kind} {name!r} returned a {_name(value)}; return a float"
            raise Fault("reward_not_number", message, self._lines.get(name, 0))


class Taskset:
    """One loaded taskset: an iterator over its tasks and the tasks that were taken so far, by position."""

    def __init__(self, taskset: vf.Taskset, prompt_limit: int) -> None:
        self._prompt_limit = prompt_limit
        with _blamed("load_raised", "load()"):
            self._iterator: Iterator[Any] = iter(taskset.load())
        self._tasks: list[vf.Task] = []
        self._prompts: list[list[Any]] = []
        self._lines: dict[type, dict[str, int]] = {}
        self._loop = asyncio.Runner()

    def rows(self, count: int) -> list[dict[str, Any]]:
        """Return the messages and fields of up to `count` further rows; fewer once the taskset is exhausted."""
        rows: list[dict[str, Any]] = []
        while len(rows) < count:
            with _blamed("load_raised", "load()"):
                task = next(self._iterator, _EXHAUSTED)
            if task is _EXHAUSTED:
                break
            with _blamed("bad_row", f"reading row {len(self._tasks)}"):
                rows.append(self._take(task))
        return rows

    def _take(self, task: Any) -> dict[str, Any]:
        """Keep the next task and return its messages and fields."""
        index = len(self._tasks)
        if not isinstance(task, vf.Task) or not isinstance(task.data, vf.TaskData):
            got = f"a vf.Task that holds a {_name(task.data)}" if isinstance(task, vf.Task) else f"a {_name(task)}"
            raise Fault("bad_row", f"row {index} is {got}; load() must yield YourTask(YourTaskData(...))")
        task = task.with_data(idx=index)  # as Taskset.__iter__ does
        prompt = _prompt(task, index, self._prompt_limit)
        if type(task) not in self._lines:
            self._lines[type(task)] = _check_rewards(task)
        task.hooks = {attr: task.hooks(attr) for attr in ("metric", "reward")}.__getitem__  # else searched every time
        self._tasks.append(task)
        self._prompts.append(prompt)
        messages = [{"role": _ROLES[type(message)], "content": message.content} for message in prompt]
        return {"messages": messages, "fields": _fields(task.data)}

    def score(self, replies: Sequence[tuple[int, str]]) -> list[dict[str, Any]]:
        """Return each reply's weighted rewards by name, and the seconds that scoring it took."""
        with _blamed("reward_raised", "a reward"):
            return self._loop.run(self._score(replies))

    def close(self) -> None:
        """Release the event loop."""
        self._loop.close()

    async def _score(self, replies: Sequence[tuple[int, str]]) -> list[dict[str, Any]]:
        rewards = []
        for index, reply in replies:
            started = time.perf_counter()
            task = self._tasks[index]
            trace = _trace(task, self._prompts[index], reply)
            trace._lines = self._lines[type(task)]
            await task.score(trace)
            missing = [name for name, reward in trace.rewards.items() if reward is None]
            if missing or not trace.rewards:
                raise Fault("reward_not_number", f"no score was recorded for {missing or 'any reward'}")
            parts = {name: reward.value for name, reward in trace.rewards.items()}
            rewards.append({"parts": parts, "seconds": time.perf_counter() - started})
        return rewards


def load(folder: Path, seed: int, prompt_limit: int) -> Taskset:
    """Return the taskset of the package in `folder`; every source of randomness starts from `seed`."""
    _seed(seed)
    sys.path.insert(0, str(folder))
    with _blamed("import_error", "importing environment.py"):
        module = importlib.import_module(f"{PACKAGE}.{MODULE.removesuffix('.py')}")
    with _blamed("no_taskset", "reading __all__"):
        found = _taskset_class(module)
    with _blamed("load_raised", f"{found.__name__}()"):
        config = (concrete_type(found, vf.TasksetConfig, origin=vf.Taskset) or vf.TasksetConfig)(id=PACKAGE)
        taskset = found(config)
    return Taskset(taskset, prompt_limit)


def warm_up() -> None:
    """Load, row and score a built-in taskset once, so that every lazy import and cache is paid before the fork."""

    class Data(vf.TaskData):  # type: ignore[misc]
        answer: str

    class Task(vf.Task[Data]):  # type: ignore[misc]
        @vf.reward  # type: ignore[untyped-decorator]
        async def exact(self, trace: vf.Trace) -> float:
            return float(trace.last_reply == self.data.answer)

    class WarmTaskset(vf.Taskset[Task, vf.TasksetConfig]):  # type: ignore[misc]
        def load(self) -> list[Task]:
            return [Task(Data(prompt="1+1", answer="2"), self.config.task)]

    _seed(0)
    taskset = Taskset(WarmTaskset(vf.TasksetConfig(id=PACKAGE)), prompt_limit=100)
    taskset.rows(1)
    taskset.score([(0, "2")])
    taskset.close()
    verify_boxed_math_answer("\\boxed{2}", "2")


def fault_of(error: BaseException, code: str, what: str) -> Fault:
    """Return the fault that an exception out of the job's code is; `code` and `what` say what was being done."""
    if isinstance(error, vf.TaskError) and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, Fault):
        return error
    line = _line(error)
    if isinstance(error, MemoryError):
        return Fault("memory", f"{what} ran out of memory", line)
    if isinstance(error, SystemExit):
        return Fault("exited", f"{what} called exit({_text(error.code)[:100]})", line)
    return Fault(code, f"{what} raised {_name(error)}: {_text(error)[:400]}", line)


def _seed(seed: int) -> None:
    random.seed(seed)
    numpy.random.seed(seed % 2**32)


class _blamed:
    """Turn whatever escapes the block into a `Fault` of the given code."""

    def __init__(self, code: str, what: str) -> None:
        self.code, self.what = code, what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            raise fault_of(error, self.code, self.what) from None


def _taskset_class(module: Any) -> type[vf.Taskset]:
    """Return the one taskset that `__all__` exports, as verifiers' loader demands (utils/loaders.py)."""
    exported = getattr(module, "__all__", None)
    if exported is None:
        raise Fault("no_taskset", 'environment.py defines no __all__; add __all__ = ["YourTaskset"]')
    found = [
        value
        for name in exported
        if isinstance(name, str)
        and isinstance(value := getattr(module, name, None), type)
        and issubclass(value, vf.Taskset)
        and value is not vf.Taskset
    ]
    if len(found) != 1:
        names = ", ".join(value.__name__ for value in found) or "none"
        raise Fault("no_taskset", f"__all__ must export exactly one vf.Taskset subclass, but it exports {names}")
    return found[0]


def _prompt(task: vf.Task, index: int, limit: int) -> list[Any]:
    """Return a row's messages: the system prompt, if any, then the prompt."""
    data = task.data
    if isinstance(data.prompt, str):
        messages: list[Any] = [vf.UserMessage(content=data.prompt)]
    elif data.prompt:
        messages = list(data.prompt)
    else:
        raise Fault("bad_row", f"row {index} has no prompt; set prompt to a non-empty string")
    if data.system_prompt:
        messages.insert(0, vf.SystemMessage(content=data.system_prompt))
    for message in messages:
        if type(message) not in _ROLES or not isinstance(message.content, str):
            raise Fault("bad_row", f"row {index} has a {_name(message)} that is not plain text")
    size = sum(len(message.content) for message in messages)
    if size > limit:
        raise Fault("row_too_large", f"row {index} has a prompt of {size} characters; at most {limit} are allowed")
    if not any(message.content.strip() for message in messages):
        raise Fault("bad_row", f"row {index} has an empty prompt")
    return messages


def _fields(data: vf.TaskData) -> dict[str, str]:
    """Return the first string and number fields that the job's data class adds to `TaskData`, as text."""
    added = [name for name in type(data).model_fields if name not in vf.TaskData.model_fields]
    values = {name: getattr(data, name) for name in added}
    texts = {name: _text(value) for name, value in values.items() if isinstance(value, str | int | float)}
    short = [(name, text) for name, text in texts.items() if len(text) <= FIELD_CHARACTERS]
    return dict(short[:FIELDS_LIMIT])


def _check_rewards(task: vf.Task) -> dict[str, int]:
    """Refuse rewards that verifiers would skip or fail on whatever the reply is; return the line of each."""
    with _blamed("load_raised", "collecting the rewards"):
        rewards, metrics = task.hooks("reward"), task.hooks("metric")
    if not rewards:
        raise Fault("no_reward", f"{_name(task)} has no @vf.reward method; add one")
    lines: dict[str, int] = {}
    for function in (*rewards, *metrics):
        plain, name = inspect.unwrap(function), function.__name__
        line = lines[name] = getattr(getattr(plain, "__code__", None), "co_firstlineno", 0)
        if not inspect.iscoroutinefunction(plain):
            raise Fault("reward_not_coroutine", f"{name!r} is not a coroutine function; write `async def {name}`", line)
        _keep_signature(function)
        wanted = inspect.signature(function).parameters.get("runtime")
        if wanted is not None and wanted.default is inspect.Parameter.empty:
            message = f"{name!r} takes `runtime`, and there is none here, so it would be skipped; drop the parameter"
            raise Fault("reward_needs_runtime", message, line)
    return lines


def _keep_signature(function: Any) -> None:
    """Let `inspect` find a method's signature ready: verifiers asks for it at every score, a fifth of its time."""
    plain = getattr(function, "__func__", None)
    if inspect.isfunction(plain) and not hasattr(plain, "__signature__"):
        plain.__signature__ = inspect.signature(plain)  # type: ignore[attr-defined]


def _trace(task: vf.Task, prompt: Sequence[Any], reply: str) -> CheckedTrace:
    """Return the trace of one finished single-turn rollout: the prompt, then the sampled reply."""
    nodes = [
        MessageNode(parent=position - 1 if position else None, message=message, sampled=False)
        for position, message in enumerate(prompt)
    ]
    nodes.append(MessageNode(parent=len(nodes) - 1, message=vf.AssistantMessage(content=reply), sampled=True))
    return CheckedTrace(
        task=vf.TraceTask(type=type(task).__name__, data=task.data),
        agent=_AGENT,
        nodes=nodes,
        state=state_cls(type(task))(),
        is_completed=True,
        stop_condition="agent_completed",
    )


def _line(error: BaseException) -> int:
    """Return the line of environment.py where an exception comes from, 0 when it doesn't."""
    own = f"/{PACKAGE}/{MODULE}"
    if isinstance(error, SyntaxError) and (error.filename or "").endswith(own):
        return error.lineno or 0
    lines = [at for frame, at in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename.endswith(own)]
    return lines[-1] if lines else 0


def _name(value: object) -> str:
    return type(value).__name__


def _text(value: object) -> str:
    """Return what an object says of itself, shortened; job code writes `__str__`, so it may raise."""
    try:
        return str(value)
    except Exception as error:
        return f"<{_name(value)} whose text raises {_name(error)}>"
