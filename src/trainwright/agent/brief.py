"""The brief: what the trainer agent is told about a task. Never the hidden items, never a score."""

from __future__ import annotations

from trainwright.agent.policy import BriefStyle
from trainwright.job.specification import job_format
from trainwright.messages import Message
from trainwright.suites.family import Task


def brief_for(task: Task, style: BriefStyle) -> list[Message]:
    """Return the conversation that opens an episode, in the style that the agent reads."""
    return compact_brief(task) if style == "compact" else full_brief(task)


def compact_brief(task: Task) -> list[Message]:
    """Return the brief for the nano agent: the instruction, examples and offers, in the words that jobs use."""
    examples = "\n".join(f'"{item.prompt}" "{item.answer}"' for item in task.examples)
    offers = " ".join(f'"{offer.student}" {offer.rollout_budget}' for offer in task.offers)
    return [{"role": "user", "content": f"{task.brief}\n{examples}\n{offers}\n"}]


def full_brief(task: Task) -> list[Message]:
    """Return the brief for large models: the task, its examples and offers, and the whole job format."""
    examples = "\n".join(f"prompt: {item.prompt!r}\nanswer: {item.answer!r}" for item in task.examples)
    offers = "\n".join(f"- {offer.student}: at most {offer.rollout_budget} rollouts" for offer in task.offers)
    text = f"{job_format()}\n\n# The task\n\n{task.brief}\n\nExamples:\n\n{examples}\n\nStudents:\n\n{offers}\n"
    return [{"role": "user", "content": text}]
