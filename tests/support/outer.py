"""A whole run over fakes, ledgers that die while they are written, and what must hold whenever a run was killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fakes import InstantPool, ScriptedPolicy, varied_answer

from trainwright.config import RunConfig
from trainwright.episode import Services
from trainwright.ledger import Ledger
from trainwright.loop import TRAIN, group_examples, train_agent, training_group
from trainwright.messages import Message
from trainwright.reference import References
from trainwright.report.view import PlainView
from trainwright.reward import reward
from trainwright.seeds import derive_seed

Script = Callable[[Sequence[Message], random.Random], str]


def config(**changes: Any) -> RunConfig:
    table = {
        "steps": 3, "groups": 2, "group_size": 3, "measure": {"items": 16, "reference_items": 16, "reference_seeds": 1},
        "probe": {"episodes": 2, "every": 2, "episodes_between": 1},
    }  # fmt: skip
    return RunConfig.model_validate(table | changes)


class Run:
    """One run over fakes in a folder; made again, it resumes."""

    def __init__(
        self,
        folder: Path,
        settings: RunConfig,
        script: Script = varied_answer,
        pool: InstantPool | None = None,
        ledger: type[Ledger] = Ledger,
        policy: ScriptedPolicy | None = None,
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.ledger = ledger(folder / "ledger.sqlite")
        self.policy = policy or ScriptedPolicy(script)
        self.pool = pool or InstantPool(jitter=True)
        references = References(self.pool, settings.measure)
        self.services = Services(settings, self.ledger, self.policy, self.pool, references, "full")

    def go(self) -> Run:
        with open(self.folder / "log", "a") as log:
            asyncio.run(train_agent(self.services, self.folder, PlainView(log)))
        return self


class Killed(BaseException):
    """Stands for kill -9: nothing catches it."""


def mortal(life: int, committed: bool) -> tuple[type[Ledger], list[int]]:
    """Return a ledger that dies at its write number `life`, before or after the commit, and the count of writes."""
    writes = [0]

    class MortalLedger(Ledger):
        @contextlib.contextmanager
        def _transaction(self) -> Iterator[Any]:
            writes[0] += 1
            if writes[0] == life and not committed:
                raise Killed
            with super()._transaction() as db:
                yield db
            if writes[0] == life:
                raise Killed

    return MortalLedger, writes


def check_accounts(run: Run) -> None:
    """Assert that a finished run with `ScriptedPolicy` took every group at most once, whole, in time and as recorded.

    The policy's weights are computed again from the ledger alone: an episode that was lost, counted twice, or written
    by another version than recorded would change them, or the answers.
    """
    ledger, settings = run.ledger, run.services.config
    groups = {group["id"]: group for group in ledger.groups()}
    taken = ledger.taken()
    assert len({one.group for one in taken}) == len(taken)
    steps = [[one for one in taken if one.group in ids] for ids in taken_by_step(ledger)]
    assert len(steps) == len(ledger.steps()) == settings.steps
    weights = [0]
    for number, (step, groups_of_step) in enumerate(zip(ledger.steps(), steps, strict=True)):
        used = [one for one in groups_of_step if one.used]
        assert len(used) == settings.groups
        assert all(0 <= one.staleness <= settings.max_off_policy_steps for one in used)
        assert all(one.staleness > settings.max_off_policy_steps for one in groups_of_step if not one.used)
        examples = []
        for one in groups_of_step:
            episodes = [e for e in ledger.episodes(TRAIN) if e.group_id == one.group]
            assert [e.id for e in episodes] == [f"{one.group}-{member}" for member in range(settings.group_size)]
            versions = [attempt.version for e in episodes for attempt in ledger.attempts(e.id)]
            assert one.staleness == number - min(versions)
            budgets = {offer["student"]: offer["rollout_budget"] for offer in groups[one.group]["task"]["offers"]}
            for e in episodes:
                assert [attempt.number for attempt in ledger.attempts(e.id)] == list(range(e.attempts))
                if e.outcome == "TRAINED":  # all members' rewards have one weight
                    facts = {"validity": groups[one.group]["validity_weight"], "cost_share": e.rollouts}
                    facts["cost_share"] /= budgets[e.student]
                    assert e.reward == reward(e.outcome, gain=e.gain, first_try=e.first_try, **facts)  # type: ignore[arg-type]
            examples += group_examples(run.services, episodes) if one.used else []
        content = json.dumps([[one.completion.text, one.advantage] for one in examples])
        weights.append(derive_seed(weights[-1], content) if examples else weights[-1])
        assert (run.folder / step.checkpoint / "weights").read_text() == str(weights[-1])
    check_versions(run, weights)


def taken_by_step(ledger: Ledger) -> list[set[str]]:
    """Return the ids of the groups that each step took."""
    rows = ledger._db.execute("SELECT group_id, step FROM taken").fetchall()
    return [{row["group_id"] for row in rows if row["step"] == step.step} for step in ledger.steps()]


def check_versions(run: Run, weights: Sequence[int]) -> None:
    """Assert that each first answer is what the policy of its recorded version says to its brief."""
    settings, ledger = run.services.config, run.ledger
    for step in range(ledger.drawn(TRAIN)):
        seed, index = derive_seed(settings.seed, "sample", step), 0
        for number in range(settings.groups):
            group = training_group(run.services, step, number)
            for member in range(settings.group_size):
                for attempt in ledger.attempts(f"{group.id}-{member}")[:1]:
                    rng = random.Random(derive_seed(weights[attempt.version], seed, index))
                    assert attempt.completion.text == run.policy.script(group.brief, rng), (group.id, member)
                index += 1
