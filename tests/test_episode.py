"""One episode over fakes: attempts and verdicts, outcomes and rewards, and what is done again after a kill."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from fakes import INFRA, JOB_FAULT, InstantPool, ScriptedPolicy, reference_answer

from trainwright.agent.policy import Completion
from trainwright.config import RunConfig
from trainwright.episode import Services, run_episode
from trainwright.errors import InfraFault
from trainwright.job.job import Job
from trainwright.ledger import Attempt, Episode, Ledger
from trainwright.loop import group_examples, make_group
from trainwright.messages import Message
from trainwright.pools.pool import OutcomeClass, Verdict
from trainwright.reference import References
from trainwright.suites.family import Task, family_named

Answers = Callable[[Sequence[Message]], str]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINWRIGHT_CACHE", str(tmp_path / "cache"))


class Bench:
    """What one episode needs, over fakes: `script` answers each conversation."""

    def __init__(self, folder: Path, script: Answers, attempts: int = 1, pool: InstantPool | None = None) -> None:
        config = RunConfig.model_validate(
            {"agent": {"max_attempts": attempts}, "measure": {"items": 200, "reference_items": 16}}
        )
        self.ledger = Ledger(folder / "ledger.sqlite")
        self.policy = ScriptedPolicy(lambda conversation, _: script(conversation))
        self.pool = pool or InstantPool()
        references = References(self.pool, config.measure)
        self.services = Services(config, self.ledger, self.policy, self.pool, references, "full")
        self.group = make_group(config, "train-0000-0", "train", 0, 0, family_named("sort"), 5)
        self.ledger.add_group(self.group.id, "train", 0, 0, "sort", self.group.record())

    def run(self, member: int = 0, first: str | None = None, validity: float = 0.3) -> Episode:
        """Run one episode, its first answer in the ledger already where one is given."""
        id = f"{self.group.id}-{member}"
        if first is not None:
            self.ledger.add_attempts([(id, Attempt(0, self.group.brief, Completion(first)))])
        return asyncio.run(run_episode(self.services, self.group, id, member, validity))


def good(conversation: Sequence[Message]) -> str:
    return reference_answer(conversation)


def marked(mark: str) -> Answers:
    return lambda conversation: reference_answer(conversation).replace("import random\n", f"import random\n{mark}\n")


def test_a_trained_episode_has_scores_gain_and_reward(tmp_path: Path) -> None:
    bench = Bench(tmp_path, good)
    episode = bench.run()
    assert (episode.outcome, episode.valid, episode.first_try, episode.attempts) == ("TRAINED", True, True, 1)
    assert episode.pre is not None
    assert episode.post is not None
    assert episode.reference is not None
    assert episode.uplift_error is not None
    assert 0.2 < episode.pre < 0.4 < 0.7 < episode.post < 1.0
    assert 0 < episode.uplift_error < 0.05
    assert episode.gain == pytest.approx((episode.post - episode.pre) / (episode.reference - episode.pre))
    spent = episode.rollouts / bench.group.task.offer(episode.student).rollout_budget
    assert spent == 1.0
    assert episode.reward == pytest.approx(0.3 + 0.7 * episode.gain - 0.05)
    assert bench.ledger.episode(episode.id) == episode


def test_the_job_in_the_ledger_is_the_one_that_was_trained(tmp_path: Path) -> None:
    bench = Bench(tmp_path, good)
    episode = bench.run()
    assert Job.parse(bench.ledger.attempts(episode.id)[0].completion.text).hash == episode.job
    assert episode.id in bench.pool.trained


def test_a_first_answer_that_was_sampled_already_is_used(tmp_path: Path) -> None:
    bench = Bench(tmp_path, good)
    assert bench.run(first="no job").outcome == OutcomeClass.REJECTED
    assert bench.policy.conversations == []


@pytest.mark.parametrize(
    ("script", "outcome", "reason", "reward"),
    [
        (lambda conversation: "", "REJECTED", "answer_empty", 0.0),
        (lambda conversation: good(conversation).replace("import random", "import torch"), "REJECTED", "import", 0.0),
        (marked(JOB_FAULT), "JOB_FAULT", "killed", 0.05),
        (marked(INFRA), "INFRA", "worker_lost", None),
    ],
)
def test_each_failure_has_its_outcome_reason_and_reward(
    tmp_path: Path, script: Answers, outcome: str, reason: str, reward: float | None
) -> None:
    episode = Bench(tmp_path, script).run()
    assert (episode.outcome, episode.reason, episode.reward) == (outcome, reason, reward)
    assert episode.detail
    assert (episode.pre, episode.post, episode.gain) == (None, None, 0.0)


def test_a_verdict_goes_back_as_the_next_message(tmp_path: Path) -> None:
    def repaired(conversation: Sequence[Message]) -> str:
        job = good(conversation)
        return (
            job
            if len(conversation) > 1 and conversation[1]["content"] != "no job"
            else job.replace("group_size = 4", "group_size = 5")
        )

    bench = Bench(tmp_path, repaired, attempts=3)
    episode = bench.run()
    assert (episode.outcome, episode.attempts, episode.valid, episode.first_try) == ("TRAINED", 2, True, False)
    first, second = bench.ledger.attempts(episode.id)
    assert first.messages == bench.group.brief
    assert [message["role"] for message in second.messages] == ["user", "assistant", "user"]
    assert second.messages[1]["content"] == first.completion.text
    assert first.verdict
    assert first.verdict in second.messages[2]["content"]
    assert "group_size" in second.messages[2]["content"]
    assert second.verdict == ""
    assert episode.reward == pytest.approx(0.7 * episode.gain - 0.05)  # no bonus for a first try
    other = bench.run(member=1, first="no job")
    examples = group_examples(bench.services, [episode, other])
    assert len(examples) == 2 + 3  # each answer of both episodes, with the advantage of its episode
    assert len({example.advantage for example in examples}) == 2


def test_all_answers_of_an_episode_are_trained_on_and_nothing_that_was_told_to_the_agent(tmp_path: Path) -> None:
    bench = Bench(tmp_path, good)
    episodes, answers, conversations = [], [], []
    for member, texts in enumerate([["no job", "none either", "job"], ["job"]]):
        conversation = list(bench.group.brief)
        for number, text in enumerate(texts):
            tokens = [ord(letter) for letter in text]
            prompt = [ord(letter) for message in conversation for letter in message["content"]]
            completion = Completion(text, prompt, tokens, [-0.5] * len(tokens))
            bench.ledger.add_attempts([(f"train-0000-0-{member}", Attempt(number, list(conversation), completion))])
            answers.append((member, tokens))
            conversations.append(prompt)
            conversation += [{"role": "assistant", "content": text}, {"role": "user", "content": f"refused {number}"}]
        episodes.append(
            Episode(f"train-0000-0-{member}", "train-0000-0", "train", 0, "sort", "TRAINED", reward=float(member))
        )
    examples = group_examples(bench.services, episodes)
    # Each answer's tokens are an example's, once, with its episode's advantage; verdicts are in prompts alone.
    assert [(example.advantage, example.completion.tokens) for example in examples] == [
        ((-0.5, 0.5)[member], tokens) for member, tokens in answers
    ]
    assert [example.completion.prompt_tokens for example in examples] == conversations
    told = "".join(map(chr, conversations[2]))
    assert told.endswith("no jobrefused 0none eitherrefused 1")


def test_the_last_verdict_counts_when_every_attempt_fails(tmp_path: Path) -> None:
    bench = Bench(tmp_path, lambda conversation: "" if len(conversation) < 5 else "text without a block", attempts=3)
    episode = bench.run()
    assert (episode.outcome, episode.reason, episode.attempts) == ("REJECTED", "answer_no_blocks", 3)
    assert [attempt.number for attempt in bench.ledger.attempts(episode.id)] == [0, 1, 2]
    assert [len(conversation) for conversation in bench.policy.conversations] == [1, 3, 5]


def test_stored_answers_are_not_sampled_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path, good, attempts=2)
    stored = Attempt(0, bench.group.brief, Completion("no job"))
    bench.ledger.add_attempts([("train-0000-0-0", stored)])  # then it was killed
    episode = bench.run()
    assert (episode.outcome, episode.attempts) == ("TRAINED", 2)
    assert [len(conversation) for conversation in bench.policy.conversations] == [3]


def test_a_finished_episode_is_not_done_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path, good)
    first = bench.run()
    trained = list(bench.pool.trained)
    assert bench.run(first="no job") == first
    assert bench.pool.trained == trained


def test_the_base_is_scored_once_for_a_group(tmp_path: Path) -> None:
    bench = Bench(tmp_path, good)

    async def members() -> list[Episode]:
        ids = [f"train-0000-0-{member}" for member in range(4)]
        work = [run_episode(bench.services, bench.group, id, n, 0.3) for n, id in enumerate(ids)]
        return await asyncio.gather(*work)

    episodes = asyncio.run(members())
    assert len({episode.pre for episode in episodes}) == 1
    assert len({episode.post for episode in episodes}) > 1  # members have training seeds of their own
    base = [weights for _, weights in bench.pool.scored if weights is None]
    assert len(base) == 2  # once for the group, once for the reference


class PoolWithoutGate(InstantPool):
    """A fake pool whose gate loses every worker."""

    async def gate(self, job: Job, task: Task) -> Verdict:
        raise InfraFault("worker_lost", "the worker process ended")


def test_a_lost_gate_is_an_infrastructure_fault(tmp_path: Path) -> None:
    bench = Bench(tmp_path, good, pool=PoolWithoutGate())
    episode = bench.run()
    assert (episode.outcome, episode.reason, episode.reward) == ("INFRA", "worker_lost", None)
    assert episode.attempts == 1


def test_a_reference_that_cannot_be_measured_is_an_infrastructure_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, good)

    async def fail(*_: object) -> object:
        raise InfraFault("reference_failed", "the reference job failed")

    monkeypatch.setattr(bench.services.references, "_measure", fail)
    assert bench.run().outcome == OutcomeClass.INFRA


def test_the_ledgers_record_of_a_task_holds_no_hidden_item(tmp_path: Path) -> None:
    bench = Bench(tmp_path, good)
    (group,) = bench.ledger.groups()
    text = str(group)
    shown = {example.prompt for example in bench.group.task.examples}
    assert not [item for item in bench.group.items if item.prompt in text and item.prompt not in shown]
    family = family_named("sort")
    restored = family.hidden_items(bench.group.task, group["task"]["items_seed"], group["task"]["items"])
    assert restored == bench.group.items
