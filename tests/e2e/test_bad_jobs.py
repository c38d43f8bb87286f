"""Every kind of bad answer as an episode on a real worker: the right outcome, and the run goes on."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from fakes import ScriptedPolicy, reference_answer

from trainwright.config import RunConfig
from trainwright.episode import Services, run_episode
from trainwright.job.answer import ANSWER_LIMIT
from trainwright.ledger import Episode, Ledger
from trainwright.loop import make_group
from trainwright.messages import Message
from trainwright.pools.local import LocalPool
from trainwright.reference import References
from trainwright.suites.family import family_named

REWARD = "return float(trace.last_reply == self.data.answer)"
SHORT = {"max_steps = 15": "max_steps = 2", "batch_size = 64": "batch_size = 16"}
JOB_SECONDS = 3.0


@pytest.fixture(scope="module")
def pool() -> Iterator[LocalPool]:
    pool = LocalPool(1, job_seconds=JOB_SECONDS, retries=1)
    asyncio.run(pool.start())
    yield pool
    asyncio.run(pool.close())


@pytest.fixture(scope="module")
def episode_of(pool: LocalPool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Episode]]:
    """Yield a function that runs one answer as the next episode of one group of one ledger."""
    folder = tmp_path_factory.mktemp("bad-jobs")
    config = RunConfig.model_validate({"measure": {"items": 32, "reference_items": 32, "reference_seeds": 1}})
    ledger = Ledger(folder / "ledger.sqlite")
    answers: list[str] = []

    def script(conversation: Sequence[Message], rng: random.Random) -> str:
        return answers[-1]

    services = Services(config, ledger, ScriptedPolicy(script), pool, References(pool, config.measure), "full")
    group = make_group(config, "train-0000-0", "train", 0, 0, family_named("sort"), 5)
    ledger.add_group(group.id, "train", 0, 0, "sort", group.record())

    def run(answer: str) -> Episode:
        answers.append(answer)
        id = f"{group.id}-{len(answers) - 1}"
        episode = asyncio.run(run_episode(services, group, id, len(answers) - 1, 0.3))
        stored = ledger.episode(id)
        assert stored == episode
        return episode

    run.brief = group.brief  # type: ignore[attr-defined]
    yield run
    ledger.close()


@pytest.fixture(scope="module")
def good(episode_of: Callable[[str], Episode]) -> str:
    """Return the task's reference job, made short."""
    answer = reference_answer(episode_of.brief)  # type: ignore[attr-defined]
    for old, new in SHORT.items():
        assert answer.count(old) == 1
        answer = answer.replace(old, new)
    return answer


def replaced(old: str, new: str) -> Callable[[str], str]:
    def change(answer: str) -> str:
        assert answer.count(old) == 1, old
        return answer.replace(old, new)

    return change


def reward(body: str, imports: str = "") -> Callable[[str], str]:
    def change(answer: str) -> str:
        lines = "\n        ".join(body.splitlines())
        return replaced(REWARD, lines)(replaced("import random\n", f"import random\n{imports}")(answer))

    return change


def rows(body: str) -> Callable[[str], str]:
    """Return a change of the whole generator of rows: `row` makes one."""

    def change(answer: str) -> str:
        start = answer.index("        rng = random.Random(1)")
        end = answer.index("\n\n", start)
        make = "row = lambda idx, prompt: Problem(Data(idx=idx, prompt=prompt, answer='a'), self.config.task)"
        return answer[:start] + "\n".join(f"        {line}" for line in [make, *body.splitlines()]) + answer[end:]

    return change


BAD: dict[str, tuple[Callable[[str], str], str, set[str]]] = {
    "an empty answer": (lambda answer: "", "REJECTED", {"answer_empty"}),
    "no blocks": (lambda answer: "I would train it well.", "REJECTED", {"answer_no_blocks"}),
    "a block that does not end": (lambda answer: answer.rstrip()[:-3], "REJECTED", {"block_unclosed"}),
    "two blocks of one file": (lambda answer: answer + answer, "REJECTED", {"file_duplicate"}),
    "10 MB": (lambda answer: answer + "x" * 10_000_000, "REJECTED", {"answer_too_large"}),
    "just too much": (lambda answer: answer + "x" * ANSWER_LIMIT, "REJECTED", {"answer_too_large"}),
    "a lone surrogate": (replaced("import random\n", "# \udcff\nimport random\n"), "REJECTED", {"file_encoding"}),
    "a NUL": (replaced("import random\n", "# \0\nimport random\n"), "REJECTED", {"file_encoding"}),
    "a file that is none": (lambda answer: answer + "```python evil.py\n```\n", "REJECTED", {"file_unknown"}),
    "TOML that is a list": (replaced("learning_rate = 0.002", "[1, 2]"), "REJECTED", {"toml_syntax"}),
    "TOML with a table": (replaced("learning_rate = 0.002", "[a]\nb = 1"), "REJECTED", {"toml_table"}),
    "a rate of nan": (replaced("learning_rate = 0.002", "learning_rate = nan"), "REJECTED", {"toml_range"}),
    "a rate of inf": (replaced("learning_rate = 0.002", "learning_rate = inf"), "REJECTED", {"toml_range"}),
    "a negative rate": (replaced("learning_rate = 0.002", "learning_rate = -0.002"), "REJECTED", {"toml_range"}),
    "negative steps": (replaced("max_steps = 2", "max_steps = -2"), "REJECTED", {"toml_range"}),
    "a rate in words": (replaced("learning_rate = 0.002", 'learning_rate = "low"'), "REJECTED", {"toml_type"}),
    "an unknown key": (replaced("learning_rate", "speed"), "REJECTED", {"toml_key"}),
    "groups that do not divide": (replaced("group_size = 4", "group_size = 5"), "REJECTED", {"toml_divide"}),
    "a budget exceeded": (replaced("max_steps = 2", "max_steps = 61"), "REJECTED", {"budget"}),
    "another student": (replaced('student = "nano-64"', 'student = "gpt-9"'), "REJECTED", {"student"}),
    "no __all__": (replaced('__all__ = ["Problems"]\n', ""), "REJECTED", {"no_all"}),
    "an import of torch": (replaced("import random\n", "import random\nimport torch\n"), "REJECTED", {"import"}),
    "broken Python": (replaced("import random\n", "import random import\n"), "REJECTED", {"syntax"}),
    "a reward that raises": (reward("raise ValueError('no')"), "REJECTED", {"reward_raised"}),
    "a reward of None": (reward("return None"), "REJECTED", {"reward_not_number"}),
    "a reward that is a string": (reward("return '1.0'"), "REJECTED", {"reward_not_number"}),
    "a reward of nan": (reward("return float('nan')"), "REJECTED", {"reward_not_finite"}),
    "a reward of 1e308": (reward("return 1e308"), "REJECTED", {"reward_out_of_range"}),
    "a constant reward": (reward("return 1.0"), "REJECTED", {"reward_constant"}),
    "a reward that sleeps": (reward(f"import time\ntime.sleep(9)\n{REWARD}"), "REJECTED", {"import"}),
    "a reward that takes seconds": (
        reward(f"sum(1 for _ in range(10**8))\n{REWARD}"), "REJECTED", {"timeout", "reward_slow"},
    ),
    "a reward that loops for ever": (reward(f"while True: pass\n{REWARD}"), "REJECTED", {"timeout"}),
    "a reward that prints a gigabyte": (
        reward(f"for _ in range(10_000): print('x' * 100_000)\n{REWARD}"),
        "TRAINED REJECTED JOB_FAULT",  # what is printed goes nowhere; writing it takes the job's own time
        {"", "timeout", "reward_slow"},
    ),
    "a reward that forks": (reward(f"import os\nos.fork()\n{REWARD}"), "REJECTED", {"import"}),
    "a reward that calls os.system": (reward(f"import os\nos.system('true')\n{REWARD}"), "REJECTED", {"import"}),
    "a reward that exits": (reward(f"raise SystemExit(0)\n{REWARD}"), "REJECTED", {"exited"}),
    "a reward that opens a socket": (reward(f"import socket\nsocket.socket()\n{REWARD}"), "REJECTED", {"import"}),
    "a reward that reads the home folder": (
        reward(f"open({str(Path.home() / '.profile')!r}).read()\n{REWARD}"), "REJECTED", {"reward_raised"},
    ),
    "no rows": (rows("return []"), "REJECTED", {"no_rows"}),
    "one row": (rows("return [row(0, 'srt<:ab=')]"), "REJECTED", {"rows_few"}),
    "equal rows": (rows("return [row(idx, 'srt<:ab=') for idx in range(100)]"), "REJECTED", {"rows_equal"}),
    "rows of 1 MB": (rows("return [row(idx, 'a' * 1_000_000) for idx in range(100)]"), "REJECTED", {"row_too_large"}),
    "prompts that the student can't read": (
        rows("return [row(idx, f'ÄÖ {idx}') for idx in range(100)]"), "REJECTED", {"unreadable_prompt"},
    ),
    "a generator that hangs": (rows("while True: pass\nyield row(0, 'a')"), "REJECTED", {"timeout"}),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_answer_has_its_outcome(episode_of: Callable[[str], Episode], good: str, name: str) -> None:
    change, outcomes, reasons = BAD[name]
    episode = episode_of(change(good))
    assert episode.outcome in outcomes.split(), (episode.reason, episode.detail)
    assert episode.reason in reasons, episode.detail
    assert "Traceback" not in episode.detail
    if episode.outcome == "REJECTED":
        assert episode.reward == 0.0
        assert episode.detail.endswith(f"[{episode.reason}]")


GOOD: dict[str, Callable[[str], str]] = {
    "as it is": lambda answer: answer,
    "with Windows line ends": lambda answer: answer.replace("\n", "\r\n"),
    "with talk around it": lambda answer: f"Sure!\n\n{answer}\nGood luck.",
    "with endless rows": lambda answer: replaced("for idx in range(600):", "idx = 0\n        while True:")(
        answer.replace("yield Problem(", "idx += 1\n            yield Problem(")
    ),
}


@pytest.mark.parametrize("name", GOOD)
def test_after_them_a_good_answer_is_trained_on_the_same_worker(
    episode_of: Callable[[str], Episode], pool: LocalPool, good: str, name: str
) -> None:
    pid = pool.workers[0].pid
    bad = episode_of(reward("raise ValueError('no')")(good))
    assert bad.reason == "reward_raised"
    episode = episode_of(GOOD[name](good))
    assert episode.outcome == "TRAINED", (episode.reason, episode.detail)
    assert episode.reward is not None
    assert pool.workers[0].pid == pid


FAULTY = {
    "raises later": ("raise ValueError('no')", "reward_raised"),
    "is not finite later": ("return float('inf')", "reward_not_finite"),
    "hangs later": ("while True: pass", "timeout"),
    "eats the memory later": ("hoard = [0] * 10**10", "memory"),
}


@pytest.mark.parametrize("name", FAULTY)
def test_what_the_gate_cannot_see_is_a_job_fault(episode_of: Callable[[str], Episode], good: str, name: str) -> None:
    """The gate scores a few replies on four rows; these rewards misbehave on a row that it never scores."""
    what, reason = FAULTY[name]
    changed = reward(f"if self.data.idx > 6:\n    {what}\n{REWARD}")(good)
    episode = episode_of(changed.replace("batch_size = 16", "batch_size = 64"))
    assert (episode.outcome, episode.reward, episode.valid) == ("JOB_FAULT", 0.05, True), episode.detail
    assert episode.reason == reason
