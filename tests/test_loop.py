"""The outer loop over fakes: what it does, in which order, and that a killed run ends like one that was not."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from fakes import InstantPool, ScriptedPolicy, reference_answer, varied_answer
from outer import Killed, Run, config, mortal

from trainwright.errors import ConfigError, SandboxError
from trainwright.loop import AFTER, BEFORE, BETWEEN, TRAIN
from trainwright.pools.pool import OutcomeClass
from trainwright.report.report import held_out_result
from trainwright.reward import VALIDITY_START
from trainwright.suites.family import suite_families


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the fake pool's reference scores out of the user's cache."""
    monkeypatch.setenv("TRAINWRIGHT_CACHE", str(tmp_path / "cache"))


def training_facts(run: Run) -> list[Any]:
    """Return what became of each training episode, times aside."""
    return [(e.id, e.outcome, e.reward, e.job) for e in run.ledger.episodes(TRAIN)]


def test_a_run_has_the_episodes_that_its_settings_say(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", config()).go()
    train = run.ledger.episodes(TRAIN)
    assert [episode.id for episode in train] == [
        f"train-{step:04d}-{group}-{member}" for step in range(3) for group in range(2) for member in range(3)
    ]
    counts = {(arm, step): len(run.ledger.episodes(arm, step)) for arm in run.ledger.arms() for step in range(4)}
    probes = {key: count for key, count in counts.items() if count and key[0] != TRAIN}
    assert probes == {(BEFORE, 0): 2, (BETWEEN, 2): 1, (AFTER, 3): 2}
    assert len(run.policy.updates) == len(run.ledger.steps()) == 3


def test_members_share_their_task_and_items_and_groups_differ(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", config(steps=4)).go()
    groups = [group for group in run.ledger.groups() if group["arm"] == TRAIN]
    assert len(groups) == 8
    assert len({group["task"]["items_seed"] for group in groups}) == 8
    for group in groups:
        members = [e for e in run.ledger.episodes(TRAIN) if e.group_id == group["id"] and e.pre is not None]
        assert len({(member.student, member.pre) for member in members}) == len({m.student for m in members})


def test_the_held_out_family_is_never_trained_on_and_the_others_take_turns(tmp_path: Path) -> None:
    settings = config(steps=5, tasks={"held_out": "sort"})
    run = Run(tmp_path / "run", settings).go()
    trained = [group["family"] for group in run.ledger.groups() if group["arm"] == TRAIN]
    others = {family.name for family in suite_families("nano")} - {"sort"}
    assert {family: trained.count(family) for family in trained} == dict.fromkeys(others, 2)
    assert {group["family"] for group in run.ledger.groups() if group["arm"] != TRAIN} == {"sort"}


def test_without_a_held_out_family_nothing_is_probed(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", config(steps=6, groups=1, tasks={"held_out": ""})).go()
    assert run.ledger.arms() == [TRAIN]
    assert len({group["family"] for group in run.ledger.groups()}) == 6


def test_the_order_in_which_answers_come_back_changes_nothing(tmp_path: Path) -> None:
    prints = [Run(tmp_path / f"run{n}", config()).go().ledger.fingerprint() for n in range(4)]
    assert len(set(prints)) == 1
    assert Run(tmp_path / "other", config(seed=1)).go().ledger.fingerprint() != prints[0]


def test_advantages_are_relative_to_the_group(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", config(steps=1, groups=3)).go()
    (update,) = run.policy.updates
    rewards = {}
    for group in run.ledger.groups():
        members = [e for e in run.ledger.episodes(TRAIN) if e.group_id == group["id"] and e.reward is not None]
        values = [e.reward for e in members if e.reward is not None]
        if len(set(values)) > 1:
            mean = sum(values) / len(values)
            rewards |= {e.id: value - mean for e, value in zip(members, values, strict=True)}
    assert sorted(example.advantage for example in update) == pytest.approx(sorted(rewards.values()))


def test_groups_without_spread_teach_nothing_and_are_counted(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", config(), script=lambda conversation, rng: "no job").go()
    assert run.policy.updates == []
    assert [step.metrics["groups_without_spread"] for step in run.ledger.steps()] == [1.0] * 3
    assert {episode.reward for episode in run.ledger.episodes(TRAIN)} == {0.0}


def test_what_infrastructure_lost_is_dropped_and_never_scored(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", config(steps=8)).go()
    lost = [episode for episode in run.ledger.episodes(TRAIN) if episode.outcome == OutcomeClass.INFRA]
    assert lost
    assert {episode.reward for episode in lost} == {None}
    assert sum(step.metrics["infra_dropped"] for step in run.ledger.steps()) == len(lost)
    texts = {run.ledger.attempts(episode.id)[0].completion.text for episode in lost}
    taught = {example.completion.text for update in run.policy.updates for example in update}
    assert not texts & taught
    for step in run.ledger.steps():
        scored = [e.reward for e in run.ledger.episodes(TRAIN, step.step) if e.reward is not None]
        assert step.metrics["reward"] == pytest.approx(sum(scored) / len(scored))


def test_probing_changes_nothing_in_training(tmp_path: Path) -> None:
    often = Run(tmp_path / "often", config(probe={"episodes": 2, "every": 1})).go()
    never = Run(tmp_path / "never", config(probe={"episodes": 0})).go()
    assert often.ledger.episodes(BETWEEN)
    assert not never.ledger.episodes(BEFORE)
    assert training_facts(often) == training_facts(never)
    assert often.policy.weights == never.policy.weights


def test_probes_are_paired(tmp_path: Path) -> None:
    """An agent that learns nothing scores the same before and after, to the last digit."""
    run = Run(tmp_path / "run", config(probe={"episodes": 4, "every": 1, "episodes_between": 3}))
    run.policy.learns = False
    run.go()
    result = held_out_result(run.services.config, run.ledger)
    assert result is not None
    assert result["difference"] == 0.0
    assert result["ci95"] == [0.0, 0.0]
    first = {e.group_id.rpartition("-")[2]: e for e in run.ledger.episodes(BEFORE)}
    for episode in [*run.ledger.episodes(BETWEEN), *run.ledger.episodes(AFTER)]:
        before = first[episode.group_id.rpartition("-")[2]]
        assert (episode.job, episode.pre, episode.post) == (before.job, before.pre, before.post)


def test_the_validity_weight_falls_once_jobs_are_valid(tmp_path: Path) -> None:
    settings = config(steps=3, groups=4, group_size=8, probe={"episodes": 0})
    run = Run(tmp_path / "run", settings, script=lambda conversation, rng: reference_answer(conversation)).go()
    weights = [step.validity for step in run.ledger.steps()]
    assert weights[0] == VALIDITY_START  # 32 episodes do not fill the window
    assert weights[1] < weights[0]
    assert weights[2] < weights[1]


# Resume


@pytest.mark.parametrize("committed", [False, True])
def test_a_run_killed_at_any_write_resumes_to_the_same_ledger(tmp_path: Path, committed: bool) -> None:
    settings = config(steps=2, agent={"max_attempts": 2}, probe={"episodes": 2, "every": 1, "episodes_between": 1})
    counting, writes = mortal(0, committed)
    whole = Run(tmp_path / "whole", settings, ledger=counting).go()
    expected = whole.ledger.fingerprint()
    assert writes[0] > 40
    for life in range(1, writes[0] + 1):
        folder = tmp_path / f"killed-{life}"
        with pytest.raises(BaseException) as caught:  # in a group or alone
            Run(folder, settings, ledger=mortal(life, committed)[0]).go()
        assert caught.group_contains(Killed) if isinstance(caught.value, BaseExceptionGroup) else caught.type is Killed
        resumed = Run(folder, settings).go()
        assert resumed.ledger.fingerprint() == expected, life
        assert resumed.policy.weights == whole.policy.weights
        resumed.ledger.close()
        shutil.rmtree(folder)


def test_a_run_killed_again_and_again_resumes_to_the_same_ledger(tmp_path: Path) -> None:
    expected = Run(tmp_path / "whole", config()).go().ledger.fingerprint()
    rng, folder = random.Random(0), tmp_path / "killed"
    for _ in range(60):
        run = Run(folder, config(), ledger=mortal(rng.randint(1, 40), rng.random() < 0.5)[0])
        try:
            run.go()
            break
        except BaseException:
            run.ledger.close()
    else:
        pytest.fail("the run did not get on")
    assert run.ledger.fingerprint() == expected


def test_a_finished_run_does_nothing_again(tmp_path: Path) -> None:
    expected = Run(tmp_path / "run", config()).go().ledger.fingerprint()
    again = Run(tmp_path / "run", config()).go()
    assert again.ledger.fingerprint() == expected
    assert (again.pool.trained, again.policy.conversations, again.policy.updates) == ([], [], [])


def test_a_run_with_more_steps_goes_on_and_is_probed_again(tmp_path: Path) -> None:
    straight = Run(tmp_path / "straight", config(steps=4)).go()
    Run(tmp_path / "run", config(steps=3)).go()
    longer = Run(tmp_path / "run", config(steps=4)).go()
    assert training_facts(longer) == training_facts(straight)
    assert {episode.step for episode in longer.ledger.episodes(AFTER)} == {3, 4}
    assert held_out_result(config(steps=4), longer.ledger) == held_out_result(config(steps=4), straight.ledger)


def test_metrics_are_there_after_every_step(tmp_path: Path) -> None:
    class KilledLater(ScriptedPolicy):
        async def update(self, examples: Any) -> dict[str, float]:
            if len(self.updates) == 1:
                raise Killed
            return await super().update(examples)

    run = Run(tmp_path / "run", config())
    run.services.policy = KilledLater(varied_answer)
    with pytest.raises(Killed):
        run.go()
    (line,) = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    row = json.loads(line)
    assert row["step"] == 1
    assert {"reward", "gain", "validity", "policy/loss", "validity_weight", "seconds"} <= row.keys()


@pytest.mark.parametrize("error", [ConfigError("a setting"), SandboxError("no sandbox"), OSError(28, "No space left")])
def test_what_stops_the_run_comes_out_alone(tmp_path: Path, error: Exception) -> None:
    """The command line prints one line for it: it must not arrive in a group of exceptions."""
    run = Run(tmp_path / "run", config(), pool=InstantPool(error=error))
    with pytest.raises(type(error)) as caught:
        run.go()
    assert caught.value is error
