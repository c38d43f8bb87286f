"""Asks the engine for the reward of one reply: one line of JSON there, one back. Standard library only."""

from __future__ import annotations

import asyncio
import json

SECONDS = 600.0
"""Patience with one answer: the engine scores one reply after the other, and a whole step's may be waiting."""


class NoReward(RuntimeError):
    """The engine has no reward for a reply, and why. The rollout fails then; it never counts as 0."""


async def fetch_reward(socket: str, row: int, reply: str, seconds: float = SECONDS) -> float:
    """Return the reward of a reply to a row; raise `NoReward`."""
    try:
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_unix_connection(socket)
            try:
                writer.write(json.dumps({"row": row, "reply": reply}).encode() + b"\n")
                await writer.drain()
                line = await reader.readline()
            finally:
                writer.close()
        answer = json.loads(line)
    except (OSError, ValueError) as error:  # a timeout is an OSError
        raise NoReward(f"the engine gave no answer: {error!r}") from error
    if "reward" not in answer:
        raise NoReward(str(answer.get("error")))
    return float(answer["reward"])
