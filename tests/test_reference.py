"""Reference scores: measured once, shared by runs, measured again when anything they depend on changes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from statistics import fmean

import pytest
from fakes import InstantPool

from trainwright.config import MeasureConfig
from trainwright.errors import InfraFault
from trainwright.job.hyperparameters import Hyperparameters
from trainwright.job.job import Job
from trainwright.pools.pool import Outcome, OutcomeClass, TrainResult
from trainwright.reference import Reference, References
from trainwright.suites.family import family_named

FAMILY = family_named("sort")
TASK = FAMILY.draw(0)
CONFIG = MeasureConfig(reference_items=64, reference_seeds=3)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINWRIGHT_CACHE", str(tmp_path / "cache"))


def get(references: References, student: str = "nano-64") -> Reference:
    return asyncio.run(references.get(FAMILY, TASK, student))


def test_it_is_the_mean_over_training_seeds() -> None:
    pool = InstantPool()
    reference = get(References(pool, CONFIG))
    assert len(pool.trained) == len(set(pool.trained)) == len(reference.posts) == 3
    assert len(set(reference.posts)) > 1
    assert reference.score == fmean(reference.posts)
    assert 0.1 < reference.pre < 0.5 < reference.score


def test_another_run_reads_it_from_the_cache() -> None:
    first = get(References(InstantPool(), CONFIG))
    pool = InstantPool()
    assert get(References(pool, CONFIG)) == first
    assert (pool.trained, pool.scored) == ([], [])


def test_episodes_that_ask_at_once_share_one_measurement() -> None:
    pool = InstantPool(jitter=True)
    references = References(pool, CONFIG)

    async def many() -> list[Reference]:
        return await asyncio.gather(*(references.get(FAMILY, TASK, "nano-64") for _ in range(8)))

    assert len(set(asyncio.run(many()))) == 1
    assert len(pool.trained) == 3


def test_a_task_drawn_by_another_seed_has_the_same_reference() -> None:
    twin = FAMILY.draw(next(seed for seed in range(1, 100) if FAMILY.draw(seed).key == TASK.key))
    assert twin != TASK
    pool = InstantPool()
    references = References(pool, CONFIG)
    assert get(references) == asyncio.run(References(pool, CONFIG).get(FAMILY, twin, "nano-64"))
    assert len(pool.trained) == 3


def test_students_and_sizes_have_their_own() -> None:
    pool = InstantPool()
    get(References(pool, CONFIG))
    get(References(pool, CONFIG), "nano-48")
    get(References(pool, CONFIG.model_copy(update={"reference_items": 32})))
    get(References(pool, CONFIG.model_copy(update={"reference_seeds": 2})))
    assert len(pool.trained) == 3 + 3 + 3 + 2


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"pre": 0.1}', b"\xff"])
def test_a_damaged_cache_file_is_measured_again(tmp_path: Path, damage: bytes) -> None:
    first = get(References(InstantPool(), CONFIG))
    (path,) = (tmp_path / "cache" / "references").iterdir()
    path.write_bytes(damage)
    pool = InstantPool()
    assert get(References(pool, CONFIG)) == first
    assert len(pool.trained) == 3
    assert json.loads(path.read_text())["pre"] == first.pre


class PoolThatRecovers(InstantPool):
    """A fake pool that loses its first job."""

    async def train(self, key: str, job: Job, hyperparameters: Hyperparameters, seed: int) -> TrainResult:
        if not self.trained:
            self.trained.append("lost")
            return TrainResult(Outcome(OutcomeClass.INFRA, "worker_lost", "it was lost"))
        return await super().train(key, job, hyperparameters, seed)


def test_a_failure_is_an_infrastructure_fault_and_is_not_kept(tmp_path: Path) -> None:
    references = References(PoolThatRecovers(), CONFIG)
    with pytest.raises(InfraFault, match="it was lost"):
        get(references)
    assert not (tmp_path / "cache" / "references").exists()
    assert get(references).score > 0.5
