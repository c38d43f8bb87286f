"""Steps that overlap: the pool works during an update, staleness is bounded, no kill loses or doubles a thing."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes import InstantPool, ScriptedPolicy, reference_answer, varied_answer
from outer import Killed, Run, check_accounts, config, mortal, taken_by_step

from trainwright import loop
from trainwright.agent.policy import Completion, Example
from trainwright.errors import ConfigError, SandboxError
from trainwright.flight import Complete
from trainwright.job.hyperparameters import Hyperparameters
from trainwright.job.job import Job
from trainwright.ledger import Ledger
from trainwright.loop import AFTER, BEFORE, TRAIN
from trainwright.messages import Message
from trainwright.pools.pool import TrainResult, Verdict
from trainwright.suites.family import Task

PATIENCE = 60.0


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the fake pool's reference scores out of the user's cache."""
    monkeypatch.setenv("TRAINWRIGHT_CACHE", str(tmp_path / "cache"))


async def until(condition: Any) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.001)


def test_a_stale_group_that_completes_while_others_are_launched_is_not_learnt_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As when a run was resumed: the ledger has all episodes of a group, so it completes at the first chance."""
    groups = [Complete(f"group-{number}", [], version=9) for number in range(2)]
    done = [groups[0]]

    class UnderWay(list[Complete]):
        def complete(self) -> list[Complete]:
            return list(self)

        def take(self, taken: Sequence[Complete]) -> None:
            for group in taken:
                self.remove(group)

        async def change(self) -> None:
            raise AssertionError("all are complete: nothing would ever change")

    def launch(services: Any, under_way: UnderWay, *_: Any) -> None:
        under_way.append(Complete("stale", [], version=1) if len(done) == 1 else groups[1])
        done.append(groups[1])

    monkeypatch.setattr(loop, "launch", launch)
    under_way = UnderWay(done[:])
    settings = SimpleNamespace(max_off_policy_steps=2, steps=1, groups=2)
    services: Any = SimpleNamespace(config=settings, version=10, ledger=SimpleNamespace(drawn=lambda arm: 0))
    used, stale = asyncio.run(loop.next_groups(services, under_way, 0, 0.0))  # type: ignore[arg-type]
    assert used == groups
    assert [group.id for group in stale] == ["stale"]


def test_without_staleness_each_step_takes_its_own_groups_from_its_own_policy(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", config(agent={"max_attempts": 2})).go()
    for step, groups in enumerate(taken_by_step(run.ledger)):
        assert groups == {f"train-{step:04d}-{number}" for number in range(2)}
    assert {(one.staleness, one.used) for one in run.ledger.taken()} == {(0, True)}
    for episode in run.ledger.all_episodes():
        assert {attempt.version for attempt in run.ledger.attempts(episode.id)} == {episode.step}
    check_accounts(run)


def test_jobs_of_the_next_step_run_while_the_policy_updates(tmp_path: Path) -> None:
    pool = InstantPool()

    class Slow(ScriptedPolicy):
        async def update(self, examples: Sequence[Example]) -> dict[str, float]:
            ahead = f"train-{len(self.updates) + 1:04d}"
            if len(self.updates) < 2:  # there is a next step
                await until(lambda: any(key.startswith(ahead) for key in pool.trained))
            return await super().update(examples)

    def answer(conversation: Sequence[Message], rng: random.Random) -> str:
        return reference_answer(conversation)

    settings = config(max_off_policy_steps=1, probe={"episodes": 0})
    run = Run(tmp_path / "run", settings, pool=pool, policy=Slow(answer)).go()
    check_accounts(run)
    assert len(run.policy.updates) == 3
    assert [row.metrics["staleness_max"] for row in run.ledger.steps()] == [0, 1, 1]


class StragglingPool(InstantPool):
    """A fake pool that is slow with one group: it trains none of it for so many steps, or before the last one."""

    def __init__(self, group: str, steps: int) -> None:
        super().__init__()
        self.group, self.steps = group, steps
        self.run: Run

    async def train(self, key: str, job: Job, hyperparameters: Hyperparameters, seed: int) -> TrainResult:
        if key.startswith(self.group):
            services = self.run.services
            moment = min(services.version + self.steps, services.config.steps - 1)
            await until(lambda: services.version >= moment)
        return await super().train(key, job, hyperparameters, seed)


@pytest.mark.parametrize(("allowed", "delay", "used"), [(1, 3, False), (2, 4, False), (6, 2, True)])
def test_a_group_that_comes_too_late_is_dropped_and_counted(
    tmp_path: Path, allowed: int, delay: int, used: bool
) -> None:
    slow = "train-0000-1"
    pool = StragglingPool(slow, delay)
    policy = ScriptedPolicy(lambda conversation, rng: reference_answer(conversation) + f"\n{rng.random()}")
    settings = config(steps=8, group_size=6, max_off_policy_steps=allowed, probe={"episodes": 0})
    pool.run = run = Run(tmp_path / "run", settings, pool=pool, policy=policy)
    run.go()
    check_accounts(run)
    (straggler,) = [one for one in run.ledger.taken() if one.group == slow]
    assert straggler.used == used
    assert straggler.staleness >= delay
    assert sum(step.metrics["groups_stale"] for step in run.ledger.steps()) == (not used)
    assert max(step.metrics["staleness_max"] for step in run.ledger.steps()) <= allowed
    episodes = [episode for episode in run.ledger.episodes(TRAIN) if episode.group_id == slow]
    assert [episode.outcome for episode in episodes] == ["TRAINED"] * 6  # dropped from training, not from the ledger
    texts = {run.ledger.attempts(episode.id)[0].completion.text for episode in episodes}
    taught = {example.completion.text for update in policy.updates for example in update}
    assert texts <= taught if used else not texts & taught


class WatchedPolicy(ScriptedPolicy):
    """A fake policy that takes its time and knows who is inside."""

    concurrent = False

    def __init__(self) -> None:
        super().__init__(varied_answer)
        self.sampling = self.updating = 0
        self.together: set[str] = set()

    async def sample(self, conversations: Sequence[Sequence[Message]], seed: int) -> list[Completion]:
        self.sampling += 1
        self.note()
        await asyncio.sleep(0.003)
        answers = await super().sample(conversations, seed)
        self.note()
        self.sampling -= 1
        return answers

    async def update(self, examples: Sequence[Example]) -> dict[str, float]:
        self.updating += 1
        self.note()
        await asyncio.sleep(0.02)
        metrics = await super().update(examples)
        self.note()
        self.updating -= 1
        return metrics

    def note(self) -> None:
        self.together |= {"samples"} if self.sampling > 1 else set()
        self.together |= {"sample and update"} if self.sampling and self.updating else set()
        self.together |= {"updates"} if self.updating > 1 else set()


class SlowGate(InstantPool):
    """A fake pool whose verdicts take their time, so that second answers are asked for all along."""

    async def gate(self, job: Job, task: Task) -> Verdict:
        await asyncio.sleep(random.random() / 50)
        return await super().gate(job, task)


@pytest.mark.parametrize("concurrent", [False, True])
def test_only_a_policy_that_allows_it_is_asked_while_it_updates(tmp_path: Path, concurrent: bool) -> None:
    policy = WatchedPolicy()
    policy.concurrent = concurrent
    settings = config(steps=8, groups=3, max_off_policy_steps=2, agent={"max_attempts": 4}, probe={"episodes": 0})
    run = Run(tmp_path / "run", settings, pool=SlowGate(), policy=policy)
    policy.script = lambda conversation, rng: "no job" if rng.random() < 0.6 else reference_answer(conversation)
    run.go()
    assert policy.together - {"samples"} == ({"sample and update"} if concurrent else set())
    assert "samples" in policy.together


# Kills


@pytest.mark.parametrize("allowed", [1, 2, 4])
def test_killed_again_and_again_it_loses_no_episode_and_counts_none_twice(tmp_path: Path, allowed: int) -> None:
    for seed in range(3):
        rng, folder = random.Random(f"{allowed} {seed}"), tmp_path / f"run-{seed}"
        settings = config(
            seed=seed,
            steps=6,
            max_off_policy_steps=allowed,
            agent={"max_attempts": 2},
            probe={"episodes": 1, "every": 3},
        )
        lives = 0
        while True:
            lives += 1
            assert lives < 80, "the run did not get on"
            pool = StragglingPool(f"train-{rng.randrange(5):04d}-{rng.randrange(2)}", 2)
            pool.jitter = True
            run = Run(folder, settings, pool=pool, ledger=mortal(rng.randint(1, 90), rng.random() < 0.5)[0])
            pool.run = run
            try:
                run.go()
                break
            except BaseException as error:
                if not was_killed(error):
                    raise
                run.ledger.close()
        assert lives > 1
        check_accounts(run)


def was_killed(error: BaseException) -> bool:
    return isinstance(error, Killed) or (isinstance(error, BaseExceptionGroup) and error.subgroup(Killed) is not None)


LIFE = """
import sys
from pathlib import Path
from outer import Run, config
settings = config(steps=12, max_off_policy_steps=2, agent={"max_attempts": 2}, probe={"episodes": 1, "every": 10})
Run(Path(sys.argv[1]), settings).go()
"""


def test_a_process_killed_for_real_goes_on(tmp_path: Path) -> None:
    rng, folder, killed = random.Random(1), tmp_path / "run", 0
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent / "support")}
    for moment in (1, 4, 8, 10**6):
        process = subprocess.Popen(
            [sys.executable, "-c", LIFE, str(folder)], env=environment, stderr=subprocess.PIPE, text=True
        )
        try:
            while process.poll() is None and steps_done(folder) < moment:
                time.sleep(0.05)
            time.sleep(rng.random() / 50)
            if moment < 10**6 and process.poll() is None:
                process.send_signal(signal.SIGKILL)
        finally:
            _, said = process.communicate(timeout=PATIENCE)
        assert process.returncode in (0, -signal.SIGKILL), said
        killed += process.returncode == -signal.SIGKILL
    assert killed >= 2
    settings = config(steps=12, max_off_policy_steps=2, agent={"max_attempts": 2}, probe={"episodes": 1, "every": 10})
    check_accounts(Run(folder, settings))


def steps_done(folder: Path) -> int:
    try:
        ledger = Ledger(folder / "ledger.sqlite", read_only=True)
    except ConfigError:
        return 0
    try:
        return len(ledger.steps())
    finally:
        ledger.close()


def test_a_finished_run_does_nothing_again_and_a_longer_one_goes_on(tmp_path: Path) -> None:
    settings = {"max_off_policy_steps": 2, "probe": {"episodes": 0}}
    Run(tmp_path / "run", config(steps=3, **settings)).go()
    again = Run(tmp_path / "run", config(steps=3, **settings)).go()
    assert (again.pool.trained, again.policy.conversations, again.policy.updates) == ([], [], [])
    longer = Run(tmp_path / "run", config(steps=5, **settings)).go()
    check_accounts(longer)
    assert len(longer.ledger.steps()) == 5


@pytest.mark.parametrize("error", [ConfigError("a setting"), SandboxError("no sandbox"), OSError(28, "No space left")])
def test_what_stops_the_run_comes_out_alone(tmp_path: Path, error: Exception) -> None:
    class FailsLater(InstantPool):
        async def train(self, *arguments: Any) -> TrainResult:
            if len(self.trained) > 8:
                self.error = error
            return await super().train(*arguments)

    run = Run(tmp_path / "run", config(max_off_policy_steps=2), pool=FailsLater())
    with pytest.raises(type(error)) as caught:
        run.go()
    assert caught.value is error


# A policy that can't be trained


class FixedPolicy(ScriptedPolicy):
    """A fake policy that can't be trained; it must not be saved or loaded."""

    trainable = False

    async def update(self, examples: Sequence[Example]) -> dict[str, float]:
        self.updates.append(list(examples))
        return {"tokens_sample": 7.0}

    def save(self, folder: Path) -> None:
        raise AssertionError

    def load(self, folder: Path) -> None:
        raise AssertionError


@pytest.mark.parametrize("allowed", [0, 1])
def test_an_agent_that_cannot_be_trained_is_measured_without_checkpoints(tmp_path: Path, allowed: int) -> None:
    settings, folder = config(max_off_policy_steps=allowed), tmp_path / "run"
    with pytest.raises((Killed, BaseExceptionGroup)):
        Run(folder, settings, policy=FixedPolicy(varied_answer), ledger=mortal(30, True)[0]).go()
    run = Run(folder, settings, policy=FixedPolicy(varied_answer)).go()
    assert [step.checkpoint for step in run.ledger.steps()] == [""] * 3
    assert not (folder / "checkpoints").exists()
    assert {step.metrics["policy/tokens_sample"] for step in run.ledger.steps()} == {7.0}
    assert {(one.staleness, one.used) for one in run.ledger.taken()} == {(0, True)}  # its answers never age
    assert len(run.ledger.episodes(BEFORE)) == 2
    assert run.ledger.episodes(AFTER) == []  # it would be the same again
