"""Turns at a policy: samplers side by side, an update alone, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import random

from trainwright.agent.turns import Turns


def test_many_share_it_and_one_has_it_alone() -> None:
    turns, inside, most = Turns(), {"shared": 0, "alone": 0}, 0

    async def visit(kind: str, rng: random.Random) -> None:
        nonlocal most
        await asyncio.sleep(rng.random() / 200)
        async with turns.shared() if kind == "shared" else turns.alone():
            inside[kind] += 1
            most = max(most, inside["shared"])
            assert inside["alone"] == 0 or inside == {"shared": 0, "alone": 1}
            await asyncio.sleep(rng.random() / 200)
            assert inside["alone"] == 0 or inside == {"shared": 0, "alone": 1}
            inside[kind] -= 1

    async def visits() -> None:
        rng = random.Random(3)
        await asyncio.gather(*(visit(rng.choice(["shared", "shared", "alone"]), rng) for _ in range(60)))

    asyncio.run(asyncio.wait_for(visits(), 30))
    assert most > 1


def test_who_wants_it_alone_is_not_kept_out_by_newcomers() -> None:
    order: list[str] = []

    async def go() -> None:
        turns, first_in, let_go = Turns(), asyncio.Event(), asyncio.Event()

        async def first() -> None:
            async with turns.shared():
                first_in.set()
                await let_go.wait()

        async def alone() -> None:
            async with turns.alone():
                order.append("alone")

        async def late() -> None:
            async with turns.shared():
                order.append("late")

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(first())
            await first_in.wait()
            tasks.create_task(alone())
            await asyncio.sleep(0)
            tasks.create_task(late())
            for _ in range(5):
                await asyncio.sleep(0)
            assert order == []
            let_go.set()

    asyncio.run(asyncio.wait_for(go(), 30))
    assert order == ["alone", "late"]


def test_an_error_or_a_cancelled_wait_gives_it_back() -> None:
    async def go() -> None:
        turns = Turns()
        for turn in (turns.shared, turns.alone):
            try:
                async with turn():
                    raise ValueError
            except ValueError:
                pass
        async with turns.shared():
            waiting = asyncio.create_task(turns.alone().__aenter__())
            await asyncio.sleep(0.01)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        async with turns.alone():
            pass

    asyncio.run(asyncio.wait_for(go(), 30))
