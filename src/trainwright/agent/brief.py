"""The brief: what the trainer agent is told about a task. Never the hidden items, never a score."""

from __future__ import annotations

from trainwright.messages import Message
from trainwright.suites.family import Task


def compact_brief(task: Task) -> list[Message]:
    """Return the brief for the nano agent: the instruction, examples and offers, in the words that jobs use."""
    examples = "\n".join(f'"{item.prompt}" "{item.answer}"' for item in task.examples)
    offers = " ".join(f'"{offer.student}" {offer.rollout_budget}' for offer in task.offers)
    return [{"role": "user", "content": f"{task.brief}\n{examples}\n{offers}\n"}]
