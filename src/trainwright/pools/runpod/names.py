"""Names of pods. The name is all that a stranger's listing shows, so it says whose the pod is and when it must be gone:
`trainwright-OWNER-DEADLINE-NONCE`, the deadline in epoch seconds, the owner from the records of one run folder.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass

PATTERN = re.compile(r"trainwright-([0-9a-f]{8})-(\d{9,12})-([0-9a-f]{8})")


@dataclass(frozen=True)
class PodName:
    """A parsed name; `deadline` is in epoch seconds."""

    owner: str
    deadline: int
    nonce: str

    @classmethod
    def new(cls, owner: str, deadline: float) -> PodName:
        """Return a name that no other pod has."""
        return cls(owner, int(deadline), secrets.token_hex(4))

    @classmethod
    def parse(cls, text: str) -> PodName | None:
        """Return the name's parts, None for a pod that isn't trainwright's."""
        match = PATTERN.fullmatch(text)
        return cls(match[1], int(match[2]), match[3]) if match else None

    def __str__(self) -> str:
        return f"trainwright-{self.owner}-{self.deadline}-{self.nonce}"
