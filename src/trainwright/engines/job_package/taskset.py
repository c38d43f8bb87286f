"""A job's rows as a verifiers taskset whose one reward asks the engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import verifiers.v1 as vf

from .rewards import fetch_reward


class JobData(vf.TaskData):  # type: ignore[misc]
    """One row; `row` is its index in the job's taskset."""

    row: int


class JobTaskConfig(vf.TaskConfig):  # type: ignore[misc]
    """Where rewards come from."""

    socket: str = ""
    """Path of the engine's unix socket."""


class JobTask(vf.Task[JobData, vf.State, JobTaskConfig]):  # type: ignore[misc]
    """One prompt, one reply, one reward."""

    @vf.reward  # type: ignore[untyped-decorator]
    async def job(self, trace: vf.Trace) -> float:
        """Return the job's reward, the weighted sum of all its rewards."""
        return await fetch_reward(self.config.socket, self.data.row, trace.last_reply)


class JobTasksetConfig(vf.TasksetConfig):  # type: ignore[misc]
    """What the engine writes into `env.taskset`."""

    rows: str = ""
    """Path of the rows, one JSON object a line: `row` and `messages`."""
    task: JobTaskConfig = JobTaskConfig()


class JobTaskset(vf.Taskset[JobTask, JobTasksetConfig]):  # type: ignore[misc]
    """The rows that the engine took from the job."""

    def load(self) -> Iterator[JobTask]:
        """Yield the rows in order."""
        for position, line in enumerate(Path(self.config.rows).read_text(encoding="utf-8").splitlines()):
            row = json.loads(line)
            yield JobTask(JobData(idx=position, row=row["row"], **_prompt(row["messages"])), self.config.task)


def _prompt(messages: list[dict[str, str]]) -> dict[str, Any]:
    """Return the fields of `TaskData` that hold a prompt."""
    system = messages[0]["content"] if messages[0]["role"] == "system" else None
    rest = messages if system is None else messages[1:]
    if len(rest) == 1:
        return {"system_prompt": system, "prompt": rest[0]["content"]}
    return {"system_prompt": system, "prompt": rest}
