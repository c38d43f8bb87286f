"""Where to rent next: GPU type x cloud x data centre, ordered by price for the speed and by stock."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

from trainwright.pools.runpod.api import NoCapacity, Offer
from trainwright.pools.runpod.config import RunpodConfig

STOCK = {"HIGH": 0, "MEDIUM": 1, "LOW": 2}
MAX_DOUBLINGS = 6
HOURS_A_MONTH = 720.0


@dataclass(frozen=True)
class Candidate:
    """One way to get a pod; the price includes the container disk. `data_center` empty lets Runpod choose."""

    gpu: str
    cloud: str
    data_center: str
    usd_per_hour: float

    @property
    def place(self) -> tuple[str, str, str]:
        """Return what identifies the candidate when its price has changed."""
        return self.gpu, self.cloud, self.data_center


class Candidates:
    """The candidates in order. One that was refused waits, longer each time, with jitter so that pods don't march."""

    def __init__(self, config: RunpodConfig, seed: int | None = None) -> None:
        self._config = config
        self._random = random.Random(seed)
        self._ordered: list[Candidate] = []
        self._until: dict[tuple[str, str, str], float] = {}
        self._refusals: dict[tuple[str, str, str], int] = {}
        self._rule_broken: dict[tuple[str, str, str], str] = {}

    def update(self, offers: Iterable[Offer]) -> None:
        """Take a fresh catalog."""
        types = {gpu.id: gpu for gpu in self._config.gpus}
        disk = self._config.money.disk_usd_per_gb_month * self._config.disk_gb / HOURS_A_MONTH
        ranked = []
        for offer in offers:
            gpu = types.get(offer.gpu)
            if gpu is None or offer.usd_per_hour > gpu.max_usd_per_hour:
                continue
            for center, level in (offer.stock or {"": "LOW"}).items():
                if not self._config.data_centers or center in self._config.data_centers:
                    candidate = Candidate(offer.gpu, offer.cloud, center, offer.usd_per_hour + disk)
                    rank = (candidate.usd_per_hour / gpu.speed, STOCK.get(level, 3), offer.gpu, offer.cloud, center)
                    ranked.append((rank, candidate))
        self._ordered = [candidate for _, candidate in sorted(ranked, key=lambda pair: pair[0])]

    def next(self, now: float) -> Candidate | None:
        """Return the first candidate that doesn't wait, None when all do."""
        return next((one for one in self._ordered if self._until.get(one.place, 0.0) <= now), None)

    def why_none(self) -> str:
        """Return why `next` has nothing."""
        if self._ordered:
            return "every candidate was refused and waits"
        return (
            "the catalog has none of pool.runpod.gpus in stock below its price limit, with this cloud and CUDA version"
        )

    def wait(self, now: float) -> float:
        """Return the seconds until the next candidate may be tried, the backoff when the catalog has none."""
        waits = [self._until.get(one.place, 0.0) - now for one in self._ordered]
        return max(0.0, min(waits)) if waits else self._config.times.backoff

    def refuse(self, candidate: Candidate, now: float, error: Exception, weight: int = 1) -> None:
        """Let a candidate wait; a failed boot cost time and money and weighs more than a refusal."""
        place = candidate.place
        if self._until.get(place, 0.0) > now:
            return  # others were refused at the same time
        self._refusals[place] = self._refusals.get(place, 0) + weight
        doublings = min(self._refusals[place] - 1, MAX_DOUBLINGS)
        self._until[place] = now + self._config.times.backoff * 2**doublings * self._random.uniform(0.5, 1.5)
        self._rule_broken.pop(place, None)
        if isinstance(error, NoCapacity) and not error.certain:
            self._rule_broken[place] = str(error)

    def accept(self, candidate: Candidate) -> None:
        """Forget a candidate's refusals: it gave a healthy pod."""
        for memory in (self._until, self._refusals, self._rule_broken):
            memory.pop(candidate.place, None)

    def broken_rule(self) -> str:
        """Return the API's words when every candidate was refused three times and never for lack of capacity.

        A full catalog and a broken rule share status 400; a rule breaks everywhere alike, so it's ours to fix.
        """
        places = [candidate.place for candidate in self._ordered]
        if places and all(place in self._rule_broken and self._refusals[place] >= 3 for place in places):
            return self._rule_broken[places[-1]]
        return ""
