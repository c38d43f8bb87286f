"""`qwen-triage`: apply a policy sheet to a ticket: which queue, which priority, which next action. Held out."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from trainwright.suites.family import Item
from trainwright.suites.qwen.answers import REPLY_FORMAT, same_list
from trainwright.suites.qwen.base import Parameters, QwenFamily

SIZES = {"short": (3, 2), "long": (5, 3)}
"""Topics on a sheet, and conditional lines in each of its two rule lists."""


@dataclass(frozen=True)
class Topic:
    """What a ticket can be about: its name on the sheet, and sentences of a ticket that mean it."""

    name: str
    sentences: tuple[str, ...]


@dataclass(frozen=True)
class Fact:
    """Something that is so or not: a clause for the sheet, and ticket sentences for both cases."""

    clause: str
    yes: tuple[str, ...]
    no: tuple[str, ...]


@dataclass(frozen=True)
class Domain:
    """One kind of help desk: what its sheets and tickets speak of."""

    desk: str
    topics: tuple[Topic, ...]
    queues: tuple[str, ...]
    actions: tuple[str, ...]
    facts: tuple[Fact, ...]
    openings: tuple[str, ...]
    closings: tuple[str, ...]


@dataclass(frozen=True)
class World:
    """How items look.

    `sheet` words the parts of a sheet: see `Sheet.text` for what each takes. `exception_share`, `last_share` and
    `override_share` say how many sheets have a routing exception, let the last fitting rule win instead of the first,
    and let a priority force an action.
    """

    domains: tuple[Domain, ...]
    priorities: tuple[tuple[str, ...], ...]
    sheet: Mapping[str, str]
    exception_share: float
    last_share: float
    override_share: float
    frames: tuple[str, ...]


WORLD = World(
    domains=(
        Domain(
            desk="online shop",
            topics=(
                Topic(
                    "late deliveries",
                    ("My parcel should have been here last week.", "I am still waiting for my order."),
                ),
                Topic("broken goods", ("The cup arrived in pieces.", "The screen has a crack.")),
                Topic("payment", ("I was charged twice.", "My card was refused at the checkout.")),
                Topic("account access", ("I forgot my password.", "I cannot log in any more.")),
                Topic(
                    "wrong items",
                    ("I ordered a red shirt and got a blue one.", "There is a stranger's order in my box."),
                ),
                Topic("invoices", ("I need a copy of my bill.", "The bill has the wrong address on it.")),
            ),
            queues=("logistics", "returns", "billing", "accounts", "warehouse", "office"),
            actions=("refund", "replace", "call back", "ask for a photo", "send a form"),
            facts=(
                Fact("the customer has a premium plan", ("I am a premium customer.",), ("I have the basic plan.",)),
                Fact(
                    "the order costs more than $100",
                    ("I paid $240 for it.", "It cost $180."),
                    ("It cost $35.", "I paid $60."),
                ),
                Fact(
                    "the customer has written before",
                    ("This is my second message about it.",),
                    ("I have not written to you before.",),
                ),
                Fact("it is a gift", ("It was meant as a birthday present.",), ("I bought it for myself.",)),
                Fact(
                    "the customer lives abroad",
                    ("I live in another country.",),
                    ("I live in the same city as your shop.",),
                ),
                Fact(
                    "the order is older than 30 days", ("I ordered it three months ago.",), ("I ordered it last week.",)
                ),
            ),
            openings=("Hello,", "Hi there,"),
            closings=("Thank you!", "Please help."),
        ),
        Domain(
            desk="public library",
            topics=(
                Topic("lost books", ("I left the book on a train.", "I cannot find the book anywhere.")),
                Topic("fees", ("Why do I have to pay 4 euros?", "I think the fine is wrong.")),
                Topic("reservations", ("I want to reserve a novel.", "Is my reserved book there yet?")),
                Topic("membership", ("My card has expired.", "How do I become a member?")),
                Topic("reading rooms", ("The reading room was too loud.", "I would like a desk for a week.")),
                Topic(
                    "computers", ("The printer on the first floor is stuck.", "The catalogue computer does not start.")
                ),
            ),
            queues=("front desk", "cashier", "collection", "members", "building", "technology"),
            actions=("write a letter", "send a reminder", "make a note", "inform the director", "offer a date"),
            facts=(
                Fact("the reader is a student", ("I study at the university.",), ("I am not a student.",)),
                Fact("the reader is under 18", ("I am 15 years old.",), ("I am 43 years old.",)),
                Fact("the matter is older than a month", ("It happened two months ago.",), ("It happened yesterday.",)),
                Fact("the reader asks for a call", ("Please phone me.",), ("Please do not phone me.",)),
                Fact(
                    "the reader has complained before",
                    ("I complained about it in spring, too.",),
                    ("I never had to complain before.",),
                ),
            ),
            openings=("Good day,", "Dear library,"),
            closings=("Regards", "Many thanks"),
        ),
    ),
    priorities=(("low", "normal", "high"), ("P1", "P2", "P3")),
    sheet={
        "title": "Rules of the {desk}",
        "queues": "Queues by topic:",
        "queue": "- {topic}: {queue}",
        "exception": "Exception: if {clause}, the queue is {queue}, whatever the topic.",
        "priorities": "Priority:",
        "actions": "Next action:",
        "rule": "- if {clause}: {value}",
        "otherwise": "- otherwise: {value}",
        "first": "If several lines of a list fit, the first of them counts.",
        "last": "If several lines of a list fit, the last of them counts; 'otherwise' is only for when none fits.",
        "override": "Exception: when the priority is {priority}, the next action is always {action}.",
    },
    exception_share=0.3,
    last_share=0.3,
    override_share=0.1,
    frames=("{sheet}\n\nMessage:\n{ticket}\n\nGive queue | priority | next action. {format}",),
)


@dataclass(frozen=True)
class Sheet:
    """One drawn policy. The rules pair a fact with a value; the `other` values are the defaults."""

    domain: Domain
    queues: Mapping[Topic, str]
    exception: tuple[Fact, str] | None
    priority_rules: tuple[tuple[Fact, str], ...]
    other_priority: str
    action_rules: tuple[tuple[Fact, str], ...]
    other_action: str
    override: tuple[str, str] | None
    last_wins: bool

    def facts(self) -> list[Fact]:
        """Return the facts that the sheet asks for, each once."""
        asked = [fact for fact, _ in (*self.priority_rules, *self.action_rules)]
        return list(dict.fromkeys([*asked, self.exception[0]] if self.exception else asked))

    def decide(self, topic: Topic, holds: Mapping[Fact, bool]) -> tuple[str, str, str]:
        """Return queue, priority and next action of a ticket."""
        queue = self.queues[topic]
        if self.exception and holds[self.exception[0]]:
            queue = self.exception[1]
        priority = self._first(self.priority_rules, holds) or self.other_priority
        action = self._first(self.action_rules, holds) or self.other_action
        if self.override and self.override[0] == priority:
            action = self.override[1]
        return queue, priority, action

    def _first(self, rules: tuple[tuple[Fact, str], ...], holds: Mapping[Fact, bool]) -> str | None:
        return next((value for fact, value in (rules[::-1] if self.last_wins else rules) if holds[fact]), None)

    def text(self, words: Mapping[str, str]) -> str:
        """Return the sheet in the words of a world."""

        def rules(title: str, pairs: tuple[tuple[Fact, str], ...], other: str) -> list[str]:
            lines = [words["rule"].format(clause=fact.clause, value=value) for fact, value in pairs]
            return [words[title], *lines, words["otherwise"].format(value=other)]

        lines = [words["title"].format(desk=self.domain.desk), words["queues"]]
        lines += [words["queue"].format(topic=topic.name, queue=queue) for topic, queue in self.queues.items()]
        if self.exception:
            lines.append(words["exception"].format(clause=self.exception[0].clause, queue=self.exception[1]))
        lines += rules("priorities", self.priority_rules, self.other_priority)
        lines += rules("actions", self.action_rules, self.other_action)
        lines.append(words["last" if self.last_wins else "first"])
        if self.override:
            lines.append(words["override"].format(priority=self.override[0], action=self.override[1]))
        return "\n".join(lines)


def partial_credit(answer: str, reply: str) -> float:
    """Return 0.1 for one answer block with three parts, and 0.3 more for each right part."""
    if reply.count("<answer>") != 1 or reply.count("</answer>") != 1:
        return 0.0
    given = [part.strip() for part in reply.partition("<answer>")[2].partition("</answer>")[0].split("|")]
    if len(given) != 3:
        return 0.0
    return (1 + 3 * sum(a == b for a, b in zip(given, answer.split(" | "), strict=True))) / 10


class Triage(QwenFamily[World]):
    """Apply a policy sheet to a ticket; tasks differ in the length of the sheets."""

    name = "qwen-triage"
    variants = ({"sheet": "short"}, {"sheet": "long"})
    visible_examples = 5
    max_completion_tokens = 64
    form = "It holds queue | priority | next action, each exactly as the sheet writes it; all three must be right."
    difference = (
        "other help desks, topics, facts and wordings, most sheets with an exception to the routing, half of them "
        "with the last fitting line counting, and more sheets where a priority forces the action."
    )
    partial_credit = staticmethod(partial_credit)
    world = WORLD

    def instruction(self, parameters: Parameters) -> str:
        topics, rules = SIZES[str(parameters["sheet"])]
        return (
            "Read a policy sheet and a ticket, and decide the ticket's queue, priority and next action. A sheet names "
            f"a queue for each of {topics} topics, and {rules} conditional lines with a default for the priority and "
            "for "
            "the action. It says whether the first or the last fitting line counts. It may have an exception to the "
            "routing, and one that lets a priority force the action."
        )

    def item(self, parameters: Parameters, world: World, rng: random.Random) -> Item:
        domain = rng.choice(world.domains)
        sheet = draw_sheet(domain, SIZES[str(parameters["sheet"])], world, rng)
        topic = rng.choice(list(sheet.queues))
        facts = sheet.facts()
        spare = [fact for fact in domain.facts if fact not in facts]
        facts += rng.sample(spare, min(len(spare), rng.randint(0, 1)))
        holds = {fact: rng.random() < 0.5 for fact in facts}
        sentences = [rng.choice(fact.yes if holds[fact] else fact.no) for fact in facts]
        sentences.append(rng.choice(topic.sentences))
        rng.shuffle(sentences)
        ticket = " ".join([rng.choice(domain.openings), *sentences, rng.choice(domain.closings)])
        prompt = rng.choice(world.frames).format(sheet=sheet.text(world.sheet), ticket=ticket, format=REPLY_FORMAT)
        return Item(prompt, " | ".join(sheet.decide(topic, holds)))

    def right(self, item: Item, block: str) -> bool:
        return same_list(block, item.answer.split(" | "), "|")


def draw_sheet(domain: Domain, size: tuple[int, int], world: World, rng: random.Random) -> Sheet:
    """Return a random sheet of a domain with `size` topics and conditional lines a list."""
    topics, rules = rng.sample(domain.topics, size[0]), size[1]
    queues = rng.sample(domain.queues, size[0])
    priorities = rng.choice(world.priorities)
    *values, other_priority = rng.sample([*priorities, *rng.sample(priorities, 1)], rules + 1)
    *actions, other_action = rng.sample(domain.actions, rules + 1)
    priority_facts, action_facts = rng.sample(domain.facts, rules), rng.sample(domain.facts, rules)
    exception = None
    if rng.random() < world.exception_share:
        exception = (rng.choice(domain.facts), rng.choice(queues))
    override = None
    if rng.random() < world.override_share:
        override = (rng.choice(values), rng.choice(domain.actions))
    return Sheet(
        domain=domain,
        queues=dict(zip(topics, queues, strict=True)),
        exception=exception,
        priority_rules=tuple(zip(priority_facts, values, strict=True)),
        other_priority=other_priority,
        action_rules=tuple(zip(action_facts, actions, strict=True)),
        other_action=other_action,
        override=override,
        last_wins=rng.random() < world.last_share,
    )
