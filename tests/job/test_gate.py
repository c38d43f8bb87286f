from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.environment.environment import Reward, Row
from trainwright.errors import InfraFault, JobFault, JobRejected
from trainwright.job.gate import check_dynamic, check_static
from trainwright.job.hyperparameters import Hyperparameters
from trainwright.job.job import DATASET, ENVIRONMENT, TRAIN, Job
from trainwright.job.specification import job_format
from trainwright.messages import Message
from trainwright.students.student import UnreadablePrompt
from trainwright.suites.family import Offer, Task

SETTINGS = Hyperparameters("small")


class FakeEnvironment:
    """Rows and a reward function without a process behind them."""

    def __init__(
        self,
        rows: Sequence[Row],
        reward: Callable[[Row, str], float],
        seconds: float = 0.0,
    ) -> None:
        self._rows, self._reward, self._seconds = list(rows), reward, seconds
        self._taken = 0
        self.scored = 0

    def rows(self, count: int) -> list[Row]:
        found = self._rows[self._taken : self._taken + count]
        self._taken += len(found)
        return found

    def score(self, replies: Sequence[tuple[int, str]]) -> list[Reward]:
        self.scored += len(replies)
        totals = [self._reward(self._rows[index], reply) for index, reply in replies]
        return [Reward(total, {"reward": total}, self._seconds) for total in totals]


def row(index: int, prompt: str = "", **fields: str) -> Row:
    return Row(index, ({"role": "user", "content": prompt or f"word {index}"},), fields or {"answer": f"w{index}"})


def exact(row: Row, reply: str) -> float:
    return float(reply == row.fields["answer"])


def read(messages: Sequence[Message]) -> list[int]:
    return [ord(character) for message in messages for character in message["content"]]


ROWS = [row(index) for index in range(100)]


def rejection(job: Job, environment: FakeEnvironment, settings: Hyperparameters = SETTINGS) -> JobRejected:
    with pytest.raises(JobRejected) as caught:
        check_dynamic(job, settings, environment, read)
    assert caught.value.file == ENVIRONMENT
    return caught.value


def refused(job: Job, task: Task) -> JobRejected:
    with pytest.raises(JobRejected) as caught:
        check_static(job, task)
    return caught.value


def test_the_documented_job_passes_the_static_checks(job: Job, task: Task) -> None:
    found = check_static(job, task)
    assert (found.student, found.rollouts, found.lora_rank) == ("small", 960, 0)


def test_train_toml_is_checked_before_the_source(job: Job, task: Task) -> None:
    assert refused(Job({ENVIRONMENT: "import torch", TRAIN: "x"}), task).file == TRAIN
    assert refused(Job({ENVIRONMENT: "import torch", TRAIN: ""}), task).file == ENVIRONMENT


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{'a': 1}", "not JSON"),
        ("[1]", "a JSON list"),
        ("null", "a JSON NoneType"),
        ('{"a": NaN}', "NaN"),
        ('{"a": ' + "9" * 5000 + "}", "too long"),
        ('{"a": ' + "[" * 100_000, "too deep"),
        ('{"a": 1} {"a": 2}', "one JSON object a line"),
    ],
)
def test_the_dataset_is_json_lines(job: Job, task: Task, line: str, says: str) -> None:
    found = refused(Job({**job.files, DATASET: f'{{"a": 1}}\n\n{line}\n'}), task)
    assert (found.code, found.file, found.line) == ("dataset_syntax", DATASET, 3)
    assert says in found.message


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=9)


@given(text=st.lists(st.sampled_from(['{"a": 1}', " ", "[]", "{"]) | TEXTS).map("\n".join))
def test_any_dataset_passes_or_is_refused(text: str) -> None:
    task = Task("test", "test", 0, {}, "", (), (Offer("small", 960),), 12)
    job = Job({**Job.parse(job_format()).files, DATASET: text})
    lines = [line for line in job.files[DATASET].split("\n") if line.strip()]
    try:
        check_static(job, task)
    except JobRejected as rejected:
        code = rejected.code
    else:
        code = ""
    assert code == ("" if all(map(is_object, lines)) else "dataset_syntax")


def is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def test_accepts_good_rows_and_rewards(job: Job) -> None:
    environment = FakeEnvironment(ROWS, exact)
    check_dynamic(job, SETTINGS, environment, read)
    assert environment.scored < 100


@pytest.mark.parametrize(
    "reward",
    [
        lambda row, reply: float(len(reply) > 3),
        lambda row, reply: -float(reply != row.fields["answer"]),
        lambda row, reply: float(reply == f"<answer>{row.fields['answer']}</answer>"),
        lambda row, reply: float(reply == f"\\boxed{{{row.fields['answer']}}}"),
        lambda row, reply: float(row.index == 3 and reply == row.fields["answer"]),
    ],
)
def test_accepts_any_reward_that_varies(job: Job, reward: Callable[[Row, str], float]) -> None:
    check_dynamic(job, SETTINGS, FakeEnvironment(ROWS, reward), read)


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        ([], "no_rows"),
        (ROWS[:1], "rows_few"),
        (ROWS[:7], "rows_few"),
        ([row(index, "same", answer="a") for index in range(100)], "rows_equal"),
        ([row(index, f"word {index % 7}") for index in range(100)], "rows_equal"),
        ([*ROWS[:9], Row(9, ())], "bad_row"),
        ([*ROWS[:9], Row(9, ({"role": "system", "content": "s"},))], "bad_row"),
        ([*ROWS[:9], row(9, " ")], "bad_row"),
    ],
)
def test_rows_that_nothing_can_be_learnt_from(job: Job, rows: list[Row], code: str) -> None:
    environment = FakeEnvironment(rows, exact)
    assert rejection(job, environment).code == code
    assert environment.scored == 0


def test_eight_different_prompts_are_enough(job: Job) -> None:
    check_dynamic(job, SETTINGS, FakeEnvironment(ROWS[:8], exact), read)


def test_a_prompt_that_the_student_cannot_read(job: Job) -> None:
    def ascii_only(messages: Sequence[Message]) -> list[int]:
        if not messages[-1]["content"].isascii():
            raise UnreadablePrompt("the prompt holds 'é', which small does not know")
        return [1]

    rows = [*ROWS[:20], row(20, "été")]
    with pytest.raises(JobRejected) as caught:
        check_dynamic(job, SETTINGS, FakeEnvironment(rows, exact), ascii_only)
    assert caught.value.code == "unreadable_prompt"
    assert "row 20: the prompt holds 'é'" in caught.value.message


@pytest.mark.parametrize(
    ("total", "code"),
    [
        (math.nan, "reward_not_finite"),
        (math.inf, "reward_not_finite"),
        (-math.inf, "reward_not_finite"),
        (1e308, "reward_out_of_range"),
        (-10.1, "reward_out_of_range"),
        (0.5, "reward_constant"),
        (0.0, "reward_constant"),
    ],
)
def test_rewards_that_nothing_can_be_learnt_from(job: Job, total: float, code: str) -> None:
    found = rejection(job, FakeEnvironment(ROWS, lambda row, reply: total))
    assert found.code == code


def test_a_bad_reward_names_the_reply_and_the_row(job: Job) -> None:
    environment = FakeEnvironment(ROWS, lambda row, reply: math.nan if reply == "w2" and row.index == 2 else 0.0)
    assert "the reply 'w2' to row 2 is nan" in rejection(job, environment).message


def test_a_reward_that_only_differs_between_rows_is_constant(job: Job) -> None:
    environment = FakeEnvironment(ROWS, lambda row, reply: float(row.index))
    assert rejection(job, environment).code == "reward_constant"


def test_slow_rewards(job: Job) -> None:
    assert rejection(job, FakeEnvironment(ROWS, exact, seconds=1.5)).code == "reward_slow"
    slow = FakeEnvironment(ROWS, exact, seconds=0.4)
    found = rejection(job, slow)
    assert found.code == "reward_slow"
    assert "384 s for 960 rollouts" in found.message
    few = Hyperparameters("small", max_steps=1)
    check_dynamic(job, few, FakeEnvironment(ROWS, exact, seconds=0.4), read)


def test_faults_of_the_environment_are_rejections(job: Job) -> None:
    def crash(row: Row, reply: str) -> float:
        raise JobFault("reward_raised", "scoring raised KeyError: 'x'", ENVIRONMENT, 14)

    found = rejection(job, FakeEnvironment(ROWS, crash))
    assert (found.code, found.message, found.line) == ("reward_raised", "scoring raised KeyError: 'x'", 14)


def test_faults_of_our_own_are_not_the_jobs(job: Job) -> None:
    def lost(row: Row, reply: str) -> float:
        raise InfraFault("server_lost", "the environment server is gone")

    with pytest.raises(InfraFault):
        check_dynamic(job, SETTINGS, FakeEnvironment(ROWS, lost), read)
