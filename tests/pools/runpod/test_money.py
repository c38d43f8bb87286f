"""The caps: arithmetic that must hold whatever happens to whom."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.pools.runpod.money import Purse
from trainwright.pools.runpod.records import PodRow

CAP = 10.0


def row(name: str, price: float, since: float, lease_until: float) -> PodRow:
    """Return a live pod's row."""
    place = {"role": "training", "gpu": "g", "cloud": "SECURE", "data_center": "", "token": "t", "deadline": 1e9}
    times = {"intent_at": since, "phase": "WORKING", "phase_since": since, "lease_until": lease_until}
    return PodRow(name=name, usd_per_hour=price, **place, **times)  # type: ignore[arg-type]


def test_what_runs_is_spent_and_what_may_still_run_is_reserved() -> None:
    rows = [row("a", 3.6, 0, 2000), row("b", 7.2, 500, 900)]
    purse = Purse.count(1.0, rows, 1000)
    assert purse == Purse(spent=pytest.approx(1 + 1 + 1), reserved=pytest.approx(1.0), usd_per_hour=pytest.approx(10.8))
    assert Purse.count(1.0, rows, 1000, without=rows[0]).reserved == 0
    assert purse.free(CAP) == pytest.approx(6.0)
    assert purse.lease(CAP, 3.6, 600) == 600
    assert purse.lease(CAP, 36.0, 3600) == pytest.approx(600)
    assert purse.allows(CAP, 20.0, 7.2, 3000)
    assert not purse.allows(CAP, 20.0, 7.2, 3001)
    assert not purse.allows(CAP, 17.9, 7.2, 1)


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["create", "renew", "die", "wait"]),
        st.integers(0, 5),
        st.floats(0.1, 20.0),
        st.floats(1.0, 3000.0),
    ),
    max_size=40,
)


@given(OPERATIONS)
def test_the_total_holds_even_when_the_controller_dies_at_any_moment(
    operations: list[tuple[str, int, float, float]],
) -> None:
    """Pods run until their leases end at worst; whatever was granted, all of it together stays below the cap."""
    now, booked, live = 0.0, 0.0, {}
    for what, number, price, seconds in operations:
        purse = Purse.count(booked, live.values(), now)
        if what == "create" and number not in live and purse.allows(CAP, 1e9, price, seconds):
            live[number] = row(str(number), price, now, now + seconds)
        elif what == "renew" and number in live:
            pod = live[number]
            lease = Purse.count(booked, live.values(), now, without=pod).lease(CAP, pod.usd_per_hour, seconds)
            pod.lease_until = now + lease
        elif what == "die" and number in live:
            booked += live.pop(number).usd(now)
        elif what == "wait":
            later = now + seconds / 10
            for gone in [key for key, pod in live.items() if pod.lease_until < later]:
                pod = live.pop(gone)
                booked += pod.usd(pod.lease_until)
            now = later
        worst = booked + sum(pod.usd(pod.lease_until) for pod in live.values())
        assert worst <= CAP * (1 + 1e-9)
