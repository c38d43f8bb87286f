"""All randomness of a run, derived from its seed by one function.

A job never chooses a seed. Every random draw names what it is for, so that adding a draw in one place never shifts
another: `derive_seed(run.seed, "task", step, group)`.
"""

from __future__ import annotations

import hashlib


def derive_seed(*parts: int | str) -> int:
    """Return a 63-bit seed that depends on every part and on their order.

    The parts are joined with an ASCII unit separator and hashed with SHA-256, so `(1, 23)` and `(12, 3)` differ.
    """
    digest = hashlib.sha256("\x1f".join(str(part) for part in parts).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
