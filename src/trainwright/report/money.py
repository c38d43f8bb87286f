"""What a run has cost: the agent's tokens by the ledger, the pods' seconds by the pool's own records."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from trainwright.ledger import Ledger
from trainwright.pools.runpod.records import Spend, read_spend


@dataclass(frozen=True)
class Money:
    """USD of the agent (sampling and updates), and of rented pods by what they did; `pods` is None without any."""

    agent: float
    pods: Spend | None

    @classmethod
    def of(cls, ledger: Ledger) -> Money:
        """Return what the run of a ledger has cost until now, also while it works."""
        updates = sum(float(step.metrics.get("policy/usd", 0.0)) for step in ledger.steps())
        return cls(ledger.completions_usd() + updates, read_spend(ledger.path.parent, time.time()))

    @property
    def total(self) -> float:
        """Return all of it."""
        return self.agent + sum(usd for _, usd in (self.pods or {}).values())

    def summary(self) -> dict[str, Any]:
        """Return the numbers for `summary.json`."""
        pods = {kind: {"seconds": seconds, "usd": usd} for kind, (seconds, usd) in (self.pods or {}).items()}
        return {"total": self.total, "agent": self.agent, "pods": pods or None}

    def lines(self) -> list[str]:
        """Return one line for people, none for a run that costs nothing."""
        if not self.total:
            return []
        parts = [f"agent ${self.agent:.2f}"]
        if self.pods:
            parts += [f"pods {', '.join(f'{kind} ${usd:.2f}' for kind, (_, usd) in self.pods.items())}"]
            paid = sum(seconds for seconds, _ in self.pods.values())
            parts += [f"{1 - self.pods['working'][0] / paid:.0%} of {paid / 3600:.2f} pod-hours without a job"]
        return [f"spent ${self.total:.2f}: {'; '.join(parts)}"]
