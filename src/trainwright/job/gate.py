"""The gate: ordered checks that a job passes before it may cost anything, cheapest first, each with a reason code.

`check_static` runs nothing of the job; `check_dynamic` asks the job's sandboxed environment for rows and rewards.
Both raise `JobRejected` for the first thing that is wrong. The codes:

    answer_too_large      the answer is longer than 256 KiB
    answer_empty          the answer is empty
    answer_no_blocks      no fenced block names a file
    block_unclosed        a fenced block has no closing line
    file_unknown          a file that is none of a job's three
    file_duplicate        two blocks of one file
    file_missing          environment.py or train.toml is missing
    file_encoding         a file is not UTF-8, or has a NUL or a lone surrogate
    file_too_large        a file is over its size limit
    file_link             a file in a folder is a link or not a regular file
    folder_missing        the job folder does not exist or is a file
    toml_syntax           train.toml is not TOML
    toml_table            train.toml has a header, a table or a list
    toml_key              an unknown key
    toml_type             a value of the wrong type
    toml_range            a value out of range
    student               a student that the task does not offer
    toml_divide           group_size does not divide batch_size
    budget                max_steps x batch_size is over the rollout budget
    syntax                environment.py is not Python
    verifiers_v0          names of the removed v0 API of verifiers
    import                an import that is not allowed
    name                  a builtin or attribute that is not allowed
    verifiers_name        a name that a job may not use, or that verifiers does not have
    no_all                there is no `__all__`
    no_taskset            no class derives from vf.Taskset
    all_names             `__all__` does not name exactly one taskset
    load                  the taskset has no plain method load
    no_reward             no method is decorated with @vf.reward
    reward_not_coroutine  a reward, metric or stop condition is not `async def`
    reward_arguments      a reward takes an argument that it will not be given
    dataset_missing       environment.py reads dataset.jsonl, and there is none
    dataset_syntax        a line of dataset.jsonl is not a JSON object
    no_rows               the taskset yields no rows
    rows_few              the taskset yields fewer than 8 rows
    rows_equal            the first 64 rows have fewer than 8 different prompts
    bad_row               a row's prompt is missing, empty or no plain text, or does not end with the user's turn
    unreadable_prompt     the student can't read a prompt
    reward_not_finite     a reward is NaN or infinite
    reward_out_of_range   a reward is outside -10 to 10
    reward_slow           one reward takes over a second, or all rollouts' rewards together over 300 s
    reward_constant       the reward is the same whatever the reply

What the environment itself reports while the gate uses it (a crash, a timeout) becomes a rejection with its own code.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence

from trainwright.environment.environment import Environment, Reward, Row
from trainwright.errors import JobFault, JobRejected
from trainwright.job.answer import DATASET, ENVIRONMENT, TRAIN
from trainwright.job.hyperparameters import Hyperparameters, parse_hyperparameters
from trainwright.job.job import Job
from trainwright.job.probes import plain_replies, wrapped_replies
from trainwright.job.static import check_source
from trainwright.messages import Message
from trainwright.students.student import UnreadablePrompt
from trainwright.suites.family import Task

ROWS_READ = 64
DISTINCT_PROMPTS = 8
ROWS_PROBED = 4
REWARD_BOUND = 10.0
REWARD_SECONDS = 1.0
SCORING_SECONDS = 300.0

Encode = Callable[[Sequence[Message]], list[int]]


def check_static(job: Job, task: Task) -> Hyperparameters:
    """Return the job's hyperparameters if its files pass every check that runs no code of it; raise `JobRejected`."""
    hyperparameters = parse_hyperparameters(job.files[TRAIN], task)
    check_source(job.files[ENVIRONMENT], has_dataset=DATASET in job.files)
    _check_dataset(job.files.get(DATASET, ""))
    return hyperparameters


def check_dynamic(job: Job, hyperparameters: Hyperparameters, environment: Environment, encode: Encode) -> None:
    """Raise `JobRejected` unless the job's running environment has usable rows and rewards.

    `encode` is the student's, see `Student.encode`. Takes the first rows, so use an environment that is
    not used for training afterwards. A `JobFault` of the environment becomes a rejection with its code; an
    `InfraFault` passes through.
    """
    try:
        rows = environment.rows(ROWS_READ)
        _check_rows(rows, encode)
        seconds = _check_rewards(job, rows[:ROWS_PROBED], environment)
        _check_scoring_time(seconds, hyperparameters.rollouts)
    except JobFault as fault:
        raise JobRejected(fault.code, fault.message, fault.file or ENVIRONMENT, fault.line) from fault


def _check_dataset(text: str) -> None:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            found = json.loads(line, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            reason = getattr(error, "msg", "a value is NaN, infinite, too long or too deep")
            message = f"This line is not JSON ({reason}); write one JSON object a line."
            raise JobRejected("dataset_syntax", message, DATASET, number) from None
        if not isinstance(found, dict):
            message = f"This line is a JSON {type(found).__name__}, not an object; write one JSON object a line."
            raise JobRejected("dataset_syntax", message, DATASET, number)


def _no_constant(name: str) -> float:
    raise ValueError(name)


def _check_rows(rows: Sequence[Row], encode: Encode) -> None:
    if not rows:
        raise _reject("no_rows", f"load() yields no rows; yield at least {DISTINCT_PROMPTS} with different prompts.")
    if len(rows) < DISTINCT_PROMPTS:
        raise _reject(
            "rows_few", f"load() yields {len(rows)} rows; yield at least {DISTINCT_PROMPTS}, better hundreds."
        )
    for row in rows:
        _check_prompt(row, encode)
    distinct = len({json.dumps(row.messages) for row in rows})
    if distinct < DISTINCT_PROMPTS:
        message = (
            f"The first {len(rows)} rows have {distinct} different prompts; vary them, at least {DISTINCT_PROMPTS}."
        )
        raise _reject("rows_equal", message)


def _check_prompt(row: Row, encode: Encode) -> None:
    roles = [message["role"] for message in row.messages]
    if not roles or roles[-1] != "user" or "system" in roles[1:] or not row.messages[-1]["content"].strip():
        message = f"The prompt of row {row.index} has the roles {roles}; end it with a user message that is not empty."
        raise _reject("bad_row", message)
    try:
        encode(row.messages)
    except UnreadablePrompt as error:
        message = f"The student can't read the prompt of row {row.index}: {error}."
        raise _reject("unreadable_prompt", message) from None


def _check_rewards(job: Job, rows: Sequence[Row], environment: Environment) -> float:
    """Return the mean seconds of a reward if the rewards tell replies apart."""
    source = job.files[ENVIRONMENT]
    others = [*rows[1:], rows[0]]
    rounds = (
        [plain_replies(row, other) for row, other in zip(rows, others, strict=True)],
        [wrapped_replies(row, source) for row in rows],
    )
    seconds: list[float] = []
    for replies in rounds:
        rewards = [_rewards(row, tried, environment) for row, tried in zip(rows, replies, strict=True)]
        seconds += [reward.seconds for group in rewards for reward in group]
        if any(len({reward.total for reward in group}) > 1 for group in rewards):
            return sum(seconds) / len(seconds)
    message = (
        "The reward is the same for every reply tried, right and wrong; reward the right reply more, and keep it whole "
        "in a string field of the row's data (such as `answer`) so that the gate can try it."
    )
    raise _reject("reward_constant", message)


def _rewards(row: Row, replies: Sequence[str], environment: Environment) -> list[Reward]:
    """Return the reward of each reply; raise `JobRejected` for one that is not finite, bounded and quick."""
    rewards = environment.score([(row.index, reply) for reply in replies])
    for reply, reward in zip(replies, rewards, strict=True):
        shown = f"the reply {reply[:40]!r} to row {row.index}"
        if not math.isfinite(reward.total):
            raise _reject("reward_not_finite", f"The reward of {shown} is {reward.total}; return a finite float.")
        if abs(reward.total) > REWARD_BOUND:
            bound = f"-{REWARD_BOUND:g} to {REWARD_BOUND:g}"
            raise _reject(
                "reward_out_of_range", f"The reward of {shown} is {reward.total:g}; keep it in {bound}, best 0 to 1."
            )
        if reward.seconds > REWARD_SECONDS:
            message = f"The reward of {shown} took {reward.seconds:.1f} s; stay under {REWARD_SECONDS:g} s."
            raise _reject("reward_slow", message)
    return rewards


def _check_scoring_time(seconds: float, rollouts: int) -> None:
    if seconds * rollouts > SCORING_SECONDS:
        message = (
            f"A reward takes {seconds:.2f} s on average, {seconds * rollouts:.0f} s for {rollouts} rollouts; "
            f"stay under {SCORING_SECONDS:g} s in all."
        )
        raise _reject("reward_slow", message)


def _reject(code: str, message: str) -> JobRejected:
    return JobRejected(code, message, ENVIRONMENT)
