"""docs/job-format.md says what the code does: its tables, lists and limits are compared with the source."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import trainwright.job
from trainwright import reward
from trainwright.environment.answers import REASONS
from trainwright.environment.client import Limits
from trainwright.job import gate
from trainwright.job.answer import ANSWER_LIMIT
from trainwright.job.hyperparameters import hyperparameter_table
from trainwright.job.job import SIZE_LIMITS, Job
from trainwright.job.specification import job_format
from trainwright.job.static import ALLOWED_MODULES, VERIFIERS_NAMES

PACKAGE = Path(trainwright.job.__file__).parent


def raised_codes() -> set[str]:
    """Return every reason code that the package passes to `JobRejected` or to a helper that makes one."""
    codes = set()
    for path in PACKAGE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("JobRejected", "reject", "_reject"):
                code = node.args[0]
                if isinstance(code, ast.Constant) and isinstance(code.value, str):
                    codes.add(code.value)
    return codes


def documented_codes() -> dict[str, str]:
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|$", job_format(), re.MULTILINE)
    return dict(rows)


def test_every_code_is_in_the_gates_docstring_and_in_the_docs() -> None:
    table = dict(re.findall(r"^    (\w+) +(.+)$", gate.__doc__ or "", re.MULTILINE))
    assert set(table) == raised_codes()
    assert table.items() <= documented_codes().items()


def test_every_code_of_the_environment_is_in_the_docs() -> None:
    assert set(REASONS) <= set(documented_codes())
    assert f"{Limits().prompt_characters:,} characters" in job_format()


def test_the_docs_hold_the_table_of_hyperparameters() -> None:
    assert hyperparameter_table() in job_format()


def test_the_docs_name_the_modules_and_names_that_are_allowed() -> None:
    text = " ".join(job_format().split())
    for title, names in (
        ("Modules that may be imported", ALLOWED_MODULES),
        ("Names of `vf` that may be used", VERIFIERS_NAMES),
    ):
        listed = re.search(rf"{title}: ([^:]*?)\. ", text)
        assert listed is not None
        assert set(re.findall(r"`([^`]+)`", listed[1])) == names


def test_the_docs_name_the_limits() -> None:
    assert f"{ANSWER_LIMIT:,} characters" in job_format()
    for name, size in SIZE_LIMITS.items():
        shown = f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"
        assert re.search(rf"^\| `{re.escape(name)}` \| \w+ \| {shown} \|", job_format(), re.MULTILINE)


def test_the_reward_is_the_one_that_is_paid() -> None:
    text = " ".join(job_format().split())
    for number, words in (
        (reward.SMALLEST_HEADROOM, "the denominator at least {:g}"),
        (reward.LOWEST_GAIN, "limited to {:g}"),
        (reward.HIGHEST_GAIN, "-0.5 to {:g}"),
        (reward.COST_WEIGHT, "less up to {:g} for the share of the rollout budget"),
        (100 * reward.VALIDITY_START, "({:g} %, later"),
        (100 * reward.VALIDITY_END, "later {:g} %)"),
        (reward.REJECTED_REWARD, "the gate refuses earns {:g},"),
        (reward.JOB_FAULT_REWARD, "fails while it trains {:g},"),
        (reward.FLAGGED_REWARD, "flagged {:g}."),
    ):
        assert words.format(number) in text


def test_failures_while_training_are_named_before_the_codes() -> None:
    """The brief leaves the tables of codes out, nothing else."""
    short = job_format(codes=False)
    assert job_format().startswith(short)
    assert "| code |" not in short
    assert "### Codes" not in short
    for code in ("non_finite", "no_signal", "unreadable_prompt"):
        assert f"`{code}`" in short


def test_the_example_is_the_only_job_in_the_docs() -> None:
    job = Job.parse(job_format())
    assert job.render().replace("\n\n```toml", "\n```toml") in job_format().replace("\n\n```toml", "\n```toml")
