"""Where to rent next."""

from __future__ import annotations

from typing import Any

import pytest

from trainwright.pools.runpod.api import NoCapacity, Offer, Skip
from trainwright.pools.runpod.candidates import Candidates
from trainwright.pools.runpod.config import RunpodConfig


def candidates(gpus: list[dict[str, Any]], **changes: Any) -> Candidates:
    """Return candidates for GPU types."""
    table = {"image": "i", "job_command": ["j"], "gpus": gpus, "disk_gb": 72, **changes}
    return Candidates(RunpodConfig.model_validate(table), seed=0)


OFFERS = [
    Offer("fast", "SECURE", 2.0, 80, {"B": "HIGH", "A": "LOW"}),
    Offer("slow", "SECURE", 1.0, 24, {"A": "HIGH"}),
    Offer("dear", "SECURE", 90.0, 80, {"A": "HIGH"}),
    Offer("unknown", "SECURE", 0.1, 8, {"A": "HIGH"}),
]


def test_price_for_the_speed_comes_first_then_stock() -> None:
    chosen = candidates([{"id": "fast", "speed": 3.0}, {"id": "slow"}, {"id": "dear"}])
    chosen.update(OFFERS)
    order = []
    while (one := chosen.next(0.0)) is not None:
        order.append((one.gpu, one.data_center))
        chosen.refuse(one, 0.0, Skip("no", 403))
    assert order == [("fast", "B"), ("fast", "A"), ("slow", "A")]
    assert chosen.next(1e9) is not None


def test_the_price_includes_the_disk_and_places_can_be_chosen() -> None:
    chosen = candidates([{"id": "fast"}], data_centers=["A"])
    chosen.update(OFFERS)
    one = chosen.next(0.0)
    assert one is not None
    assert (one.data_center, one.usd_per_hour) == ("A", pytest.approx(2.0 + 72 * 0.10 / 720))


def test_a_refused_candidate_waits_longer_each_time_and_is_forgiven() -> None:
    chosen = candidates([{"id": "slow"}])
    chosen.update(OFFERS)
    waits, now = [], 0.0
    for _ in range(9):
        one = chosen.next(now)
        assert one is not None
        chosen.refuse(one, now, NoCapacity("no instances available"))
        chosen.refuse(one, now, NoCapacity("no instances available"))  # another pod asked at the same time
        waits.append(chosen.wait(now))
        now += waits[-1]
    assert 2.5 <= waits[0] <= 7.5
    assert waits[5] > 5 * waits[0]
    assert max(waits) <= 5 * 64 * 1.5
    chosen.accept(one)
    chosen.refuse(one, now, NoCapacity("no instances available"))
    assert chosen.wait(now) <= 7.5


def test_a_rule_broken_everywhere_is_ours_but_missing_capacity_is_not() -> None:
    for words, ours in (("request could not be processed", True), ("no instances available", False)):
        chosen = candidates([{"id": "slow"}, {"id": "fast"}])
        chosen.update(OFFERS)
        now = 0.0
        for _ in range(9):
            while (one := chosen.next(now)) is not None:
                assert chosen.broken_rule() == ""
                chosen.refuse(one, now, NoCapacity(words))
                if chosen.broken_rule():
                    break
            now += 1e4
            if chosen.broken_rule():
                break
        assert bool(chosen.broken_rule()) is ours


def test_an_empty_catalog_says_so() -> None:
    chosen = candidates([{"id": "none"}])
    chosen.update(OFFERS)
    assert chosen.next(0.0) is None
    assert "pool.runpod.gpus" in chosen.why_none()
    assert chosen.wait(0.0) > 0
