"""The chat message, the one shape in which text passes between people, agents, jobs and students."""

from __future__ import annotations

from typing import Literal, TypedDict


class Message(TypedDict):
    """One turn of a conversation, as in the OpenAI chat format."""

    role: Literal["system", "user", "assistant"]
    content: str
