"""The brief: what the trainer agent is told about a task. Never the hidden items, never a score."""

from __future__ import annotations

from trainwright.agent.policy import BriefStyle
from trainwright.job.specification import job_format
from trainwright.messages import Message
from trainwright.suites.family import Task

FULL_BRIEF_TOKENS = 5120
"""Tokens of Qwen3's tokenizer that a full brief of the built-in suites stays under, chat template included."""
EXAMPLE_CHARACTERS = 8000
"""Room for examples in a full brief; a task with longer ones shows fewer of them, at least one."""

FULL_BRIEF = """\
Write one reinforcement-learning job that makes a small language model better at the task at the end. First the format
of jobs, then the task.

{job_format}

# The task

{brief}

The hidden items are drawn like these examples (Python string literals):

{examples}

Students, with the budget for max_steps x batch_size:

{offers}

A reply has at most {tokens} tokens, in training (`max_completion_tokens`) and when it is measured.

Answer with the complete job: the block `python environment.py`, which begins with `import verifiers.v1 as vf` and its
other imports, and the block `toml train.toml`.
"""


def brief_for(task: Task, style: BriefStyle) -> list[Message]:
    """Return the conversation that opens an episode, in the style that the agent reads."""
    return compact_brief(task) if style == "compact" else full_brief(task)


def compact_brief(task: Task) -> list[Message]:
    """Return the brief for the nano agent: the instruction, examples and offers, in the words that jobs use."""
    examples = "\n".join(f'"{item.prompt}" "{item.answer}"' for item in task.examples)
    offers = " ".join(f'"{offer.student}" {offer.rollout_budget}' for offer in task.offers)
    return [{"role": "user", "content": f"{task.brief}\n{examples}\n{offers}\n"}]


def full_brief(task: Task) -> list[Message]:
    """Return the brief for large models: the job format, then the task with its examples, students and budgets.

    What all briefs share comes first: a server that caches prompts reads it once.
    """
    offers = "\n".join(f"- `{offer.student}`: at most {offer.rollout_budget} rollouts" for offer in task.offers)
    text = FULL_BRIEF.format(
        job_format=job_format(codes=False).strip(),
        brief=task.brief,
        examples=_examples(task),
        offers=offers,
        tokens=task.max_completion_tokens,
    )
    return [{"role": "user", "content": text}]


def _examples(task: Task) -> str:
    shown = [f"prompt: {item.prompt!r}\nanswer: {item.answer!r}" for item in task.examples]
    while len(shown) > 1 and sum(map(len, shown)) > EXAMPLE_CHARACTERS:
        shown.pop()
    return "\n".join(shown)
