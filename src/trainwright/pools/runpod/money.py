"""How much may be spent: pure arithmetic over the live pods' rows.

A lease is money in escrow. Whatever the pods can still cost without us, which is their price until their leases end, is
counted as spent before a lease is granted or a pod is asked for, so the total holds even when the controller dies.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trainwright.errors import TrainwrightError
from trainwright.pools.runpod.records import PodRow


class OutOfMoney(TrainwrightError):
    """A cap or the account's balance is exhausted; episodes that wait are not scored."""


@dataclass(frozen=True)
class Purse:
    """What is spent (closed phases and running ones) and what the live pods may still cost, in USD."""

    spent: float
    reserved: float
    usd_per_hour: float

    @classmethod
    def count(cls, booked: float, rows: Iterable[PodRow], now: float, *, without: PodRow | None = None) -> Purse:
        """Return the purse at a time; the reserve of the row `without` is left out (it is about to be renewed)."""
        spent, reserved, rate = booked, 0.0, 0.0
        for row in rows:
            spent += row.usd(now)
            rate += row.usd_per_hour
            if without is None or row.name != without.name:
                reserved += row.reserved(now)
        return cls(spent, reserved, rate)

    def free(self, cap: float) -> float:
        """Return what is neither spent nor reserved, never negative."""
        return max(0.0, cap - self.spent - self.reserved)

    def lease(self, cap: float, usd_per_hour: float, wanted: float) -> float:
        """Return the seconds of lease that the cap allows a pod, `wanted` at most."""
        return min(wanted, self.free(cap) * 3600 / usd_per_hour) if usd_per_hour > 0 else wanted

    def allows(self, cap: float, rate_cap: float, usd_per_hour: float, seconds: float) -> bool:
        """Return whether a pod may be asked for that can cost its price for so many seconds without us."""
        fits_rate = self.usd_per_hour + usd_per_hour <= rate_cap + 1e-9
        return fits_rate and usd_per_hour * seconds / 3600 <= self.free(cap)
