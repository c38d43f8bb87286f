"""The settings of the agent `chat`: table `[agent.chat]` of a run's TOML file (see docs/chat.md)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from ipaddress import ip_address
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from trainwright.agent.prices import Price
from trainwright.errors import ConfigError
from trainwright.messages import Message
from trainwright.section import Section

OPENAI = "https://api.openai.com/v1"
PREFIX = "openai:"
LARGEST_SEED = 2**31 - 1
"""Servers keep seeds in integers of many sizes."""


class ChatSettings(Section):
    """An agent behind an OpenAI-compatible server, measured without training."""

    model: str = Field(min_length=1)
    """The model's name on the server."""
    base_url: str = OPENAI
    """The server's address up to the path before `/chat/completions`, mostly `.../v1`."""
    key_env: str = ""
    """The environment variable that holds the key. Empty: `OPENAI_API_KEY` for OpenAI's server, no key for another."""
    temperature: float | None = Field(None, ge=0, le=2)
    """Sampling temperature; left out of the request, and so the server's default, when it is not set."""
    max_tokens: int = Field(8192, ge=16, le=131_072)
    """Longest answer in tokens, thoughts included; a longer one is cut and then rejected by the gate."""
    length_field: Literal["", "max_tokens", "max_completion_tokens"] = ""
    """The request's name for it. Empty: `max_completion_tokens` for OpenAI's server, `max_tokens` for another."""
    send_seed: bool = True
    """Send a seed with each request; servers that know none refuse the request."""
    body: dict[str, Any] = {}
    """Further fields of each request, such as `reasoning_effort`."""
    in_flight: int = Field(16, ge=1, le=1024)
    """Requests that are open at once."""
    timeout: float = Field(600.0, gt=0)
    """Seconds to wait for one answer, whole."""
    connect_timeout: float = Field(20.0, gt=0)
    """Seconds to wait for a connection."""
    pause: float = Field(1.0, gt=0)
    """Seconds before a failed request is tried again; they double with each failure up to a minute, with jitter."""
    patience: float = Field(1800.0, ge=0)
    """Seconds of trying after a request's first failure; then the run stops and can be resumed."""
    price: Price | None = None
    """USD a million tokens, where the built-in table (`prices.toml`) has no price or an old one."""

    @field_validator("base_url")
    @classmethod
    def _is_a_url(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError("write it as http://HOST:PORT/v1 or https://HOST/v1")
        if parts.username or parts.password:
            raise ValueError("must not hold a password: it would be written into the run's folder; use key_env")
        return url.rstrip("/").removesuffix("/chat/completions")

    @property
    def key_variable(self) -> str:
        """Return the environment variable that holds the key, empty where none is sent."""
        return self.key_env or ("OPENAI_API_KEY" if self.base_url == OPENAI else "")

    def request(self, messages: Sequence[Message], seed: int) -> dict[str, Any]:
        """Return the body of a request for one answer."""
        length = self.length_field or ("max_completion_tokens" if self.base_url == OPENAI else "max_tokens")
        body: dict[str, Any] = {"model": self.model, "messages": list(messages), length: self.max_tokens}
        body |= {} if self.temperature is None else {"temperature": self.temperature}
        body |= {"seed": seed % LARGEST_SEED} if self.send_seed else {}
        return body | self.body

    @property
    def own_server(self) -> bool:
        """Return whether the server is on this machine, so that nobody bills its tokens."""
        host = urlsplit(self.base_url).hostname or ""
        try:
            return ip_address(host).is_loopback
        except ValueError:
            return host == "localhost"


def chat_changes(agent: str, base_url: str) -> list[str]:
    """Return the settings that `--agent openai:MODEL --base-url URL` stands for; raise `ConfigError`."""
    if not agent and not base_url:
        return []
    model = agent.removeprefix(PREFIX)
    if not agent:
        raise ConfigError(f"--base-url {base_url}: add --agent {PREFIX}MODEL")
    if not agent.startswith(PREFIX) or not model:
        raise ConfigError(f"--agent {agent}: write it as {PREFIX}MODEL")
    changes = ["agent.backend=chat", f"agent.chat.model={json.dumps(model)}"]
    return changes + ([f"agent.chat.base_url={json.dumps(base_url)}"] if base_url else [])
