"""Turns at a policy that can't be asked while it updates: answers are sampled side by side, an update comes alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turns:
    """A lock that many may share or one may have alone; who wants it alone waits only for those who share it now."""

    def __init__(self) -> None:
        self._entrance = asyncio.Lock()
        self._empty = asyncio.Event()
        self._empty.set()
        self._inside = 0

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        """Hold it together with others."""
        async with self._entrance:
            self._inside += 1
            self._empty.clear()
        try:
            yield
        finally:
            self._inside -= 1
            if not self._inside:
                self._empty.set()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Hold it alone."""
        async with self._entrance:
            await self._empty.wait()
            yield
