"""Which pod takes which work, and how many pods there are."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.pools.runpod.queue import Work, WorkQueue, choose, pods_wanted

pytestmark = pytest.mark.anyio
GROUPS = st.lists(st.sampled_from("abcdef"), min_size=1, max_size=30)


def test_a_pod_stays_with_its_group() -> None:
    assert choose(["a", "b", "a"], "b", ["b"]) == 1


def test_a_pod_joins_the_oldest_group_that_needs_it() -> None:
    assert choose(["a", "b", "b", "b"], "", []) == 0
    assert choose(["a", "b", "b", "b"], "", ["a"]) == 1  # one job is what a's own pod will take
    assert choose(["a", "a", "a", "b"], "x", ["a"]) == 0
    assert choose(["a", "a", "b"], "x", ["a", "a", "b"]) == 0  # nobody needs help: most work for each pod


@given(GROUPS, st.sampled_from("abcdefx"), GROUPS)
def test_any_choice_is_the_oldest_of_its_group(waiting: list[str], own: str, serving: list[str]) -> None:
    index = choose(waiting, own, serving)
    assert waiting.index(waiting[index]) == index
    if own in waiting:
        assert waiting[index] == own


@given(st.integers(0, 100), st.integers(0, 20), st.integers(1, 20))
def test_pods_follow_the_work_up_to_the_limit(waiting: int, busy: int, limit: int) -> None:
    wanted = pods_wanted(waiting, busy, limit)
    assert wanted <= limit
    assert wanted == limit or wanted == waiting + busy


def work(key: str, role: str = "training") -> Work:
    """Return a piece of work."""
    return Work(key, role, key[0], [], {}, 1.0, {}, asyncio.get_running_loop().create_future())


async def test_work_that_comes_back_gets_its_old_place() -> None:
    queue = WorkQueue()
    first, second = work("a1"), work("a2")
    for one in (first, second):
        await queue.put(one)
    assert await queue.take("training", "", [], 1.0) is first
    await queue.put(first)
    assert [one.key for one in queue.waiting("training")] == ["a1", "a2"]
    assert queue.drain() == [first, second]


async def test_roles_are_kept_apart_and_waiting_ends() -> None:
    queue = WorkQueue()
    await queue.put(work("e", "evaluation:small"))
    assert queue.roles() == ["evaluation:small"]
    assert await queue.take("training", "", [], 0.01) is None
    taking = asyncio.create_task(queue.take("training", "", [], 10.0))
    await asyncio.sleep(0)
    one = work("a1")
    await queue.put(one)
    assert await taking is one
