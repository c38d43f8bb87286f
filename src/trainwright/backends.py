"""Agents, engines and pools by name: the built-in ones and those of other packages come through the same entry points.

An entry point names a function that makes the backend from its configuration:

| group | called with | returns |
|---|---|---|
| `trainwright.agents` | `RunConfig`, progress of its preparation `(done, total)` | `agent.policy.Policy` |
| `trainwright.engines` | `EngineConfig` | `engines.engine.Engine` |
| `trainwright.pools` | `RunConfig` | `pools.pool.Pool` |

A module with such a function for an agent or a pool may also have `preflight(config: RunConfig)`. It is called before
anything else is done, and raises `ConfigError` for what would end the run later: a missing key, no way to a server.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Literal

from trainwright.errors import ConfigError

if TYPE_CHECKING:
    from trainwright.agent.policy import Policy
    from trainwright.config import EngineConfig, RunConfig
    from trainwright.engines.engine import Engine
    from trainwright.pools.pool import Pool

Kind = Literal["agents", "engines", "pools"]


def preflight(config: RunConfig) -> None:
    """Let the agent and the pool of a run look whether they have what they need; raise `ConfigError`."""
    for factory in (_factory("agents", config.agent.backend), _factory("pools", config.pool.backend)):
        look = getattr(sys.modules[factory.__module__], "preflight", None)
        if look is not None:
            look(config)


def make_policy(config: RunConfig, progress: Callable[[int, int], None]) -> Policy:
    """Return the trainer agent that `agent.backend` names; raise `ConfigError`."""
    policy: Policy = _factory("agents", config.agent.backend)(config, progress)
    return policy


def make_engine(config: EngineConfig) -> Engine:
    """Return the engine that `engine.backend` names; raise `ConfigError`."""
    engine: Engine = _factory("engines", config.backend)(config)
    return engine


def make_pool(config: RunConfig) -> Pool:
    """Return the pool that `pool.backend` names, not started yet; raise `ConfigError`."""
    pool: Pool = _factory("pools", config.pool.backend)(config)
    return pool


def _factory(kind: Kind, name: str) -> Callable[..., Any]:
    points = entry_points(group=f"trainwright.{kind}")
    found = [point for point in points if point.name == name]
    if not found:
        known = ", ".join(sorted(point.name for point in points)) or "none (is the package installed?)"
        raise ConfigError(f"{kind[:-1]}.backend = {name!r} is not installed; known: {known}")
    if len(found) > 1:
        raise ConfigError(f"two installed packages provide {kind[:-1]}.backend = {name!r}; uninstall one of them")
    try:
        factory: Callable[..., Any] = found[0].load()
    except ImportError as error:
        ours = found[0].value.startswith("trainwright.")
        hint = f"; install the extra: pip install 'trainwright[{name}]'" if ours else ""
        raise ConfigError(f"{kind[:-1]}.backend = {name!r} does not load: {error}{hint}") from None
    return factory
