# mypy: disable-error-code="misc, untyped-decorator"
import random
from collections.abc import Iterator

import verifiers.v1 as vf

from trainwright.suites.qwen.triage import partial_credit

PARAMETERS = {"sheet": "short"}

FORMAT = "Write the final result between <answer> and </answer>."
TOPICS = {
    "heating": ("The radiator stays cold.", "My flat is too warm and I can't turn it down."),
    "parking": ("Somebody stands on my parking space.", "I need a place for my car."),
    "noise": ("The music next door goes on all night.", "Drilling starts at six every morning."),
    "keys": ("I am locked out.", "My key broke in the door."),
    "windows": ("The pane is broken.", "The window does not close."),
    "rent": ("How much do I owe?", "I paid the wrong sum."),
    "lift": ("The lift stops between floors.", "The lift button does nothing."),
    "garden": ("The hedge is too high.", "The lawn is full of weeds."),
    "post": ("My mailbox was forced open.", "I get other people's letters."),
    "internet": ("The connection is gone.", "Pages take minutes to load."),
}
QUEUES = (
    "red team",
    "team 7",
    "desk A",
    "night office",
    "Ms Stone",
    "north branch",
    "craftsmen",
    "legal",
    "inbox 12",
    "guards",
)
ACTIONS = (
    "visit",
    "reply by mail",
    "wait",
    "order parts",
    "ask back",
    "escalate",
    "close",
    "measure",
    "apologise",
    "forward",
)
LEVELS = (("1", "2", "3"), ("minor", "major", "urgent"), ("A", "B", "C"), ("slow", "medium", "fast"))
FACTS = {
    "the sender is a member": (("I am a member.", "As a member I expect help."), ("I am not a member.",)),
    "more than three people are concerned": (
        ("Nine people are concerned.",),
        ("It is only about me.", "Two people are concerned."),
    ),
    "it has been reported before": (("I reported it in May already.",), ("This is my first report.",)),
    "the sum is above 500": (
        ("It is about a sum of 800.", "The sum is 1200."),
        ("The sum is 90.", "It is about a sum of 310."),
    ),
    "the sender wants a quick reply": (("I need an answer today.",), ("There is no hurry.",)),
    "children live there": (("My three children live here.",), ("No children live here.",)),
    "a picture is attached": (("See the attached picture.",), ("I have no picture of it.",)),
    "the contract is new": (("My contract began last week.",), ("My contract is ten years old.",)),
}
FIRST = (
    "If more than one line fits, take the upper one.",
    "The first line that fits decides.",
    "Earlier lines go before later ones.",
)
LAST = (
    "If more than one line fits, take the lowest one; the default line is only for no fit.",
    "The last fitting line decides (not counting the default).",
    "Later lines go before earlier ones, except the default.",
)
FRAMES = (
    "{sheet}\n\nTicket: {ticket}\n\nReply with queue | priority | action. {format}",
    "A ticket came in: {ticket}\n\nThe handbook says:\n{sheet}\n\nWhat are queue | priority | action? {format}",
)


def draw_problem(rng: random.Random) -> tuple[str, str]:
    count, rules = (3, 2) if PARAMETERS["sheet"] == "short" else (5, 3)
    topics, queues = rng.sample(list(TOPICS), count), rng.sample(QUEUES, count)
    levels = rng.choice(LEVELS)
    lists = [
        (rng.sample(list(FACTS), rules), [*rng.sample((*levels, levels[0]), rules + 1)]),
        (rng.sample(list(FACTS), rules), rng.sample(ACTIONS, rules + 1)),
    ]
    last = rng.random() < 0.5
    rule, default = rng.choice(
        (("If {}: {}", "Else: {}"), ("{1} when {0}", "{} in all other cases"), ("* {} -> {}", "* default -> {}"))
    )
    arrow = rng.choice((": ", " goes to ", " = "))
    holds = {fact: rng.random() < 0.5 for fact in FACTS}
    asked = [fact for facts, _ in lists for fact in facts]

    topic = rng.choice(topics)
    decision = [queues[topics.index(topic)]]
    lines = [
        rng.choice(("Queue", "Who takes it", "Routing")),
        *(f"{t}{arrow}{q}" for t, q in zip(topics, queues, strict=True)),
    ]
    if rng.random() < 0.5:
        fact, queue = rng.choice(list(FACTS)), rng.choice(queues)
        asked.append(fact)
        lines.append(
            rng.choice(("If {}, it always goes to {}.", "Exception: when {}, use {} for every topic.")).format(
                fact, queue
            )
        )
        decision = [queue] if holds[fact] else decision
    for title, (facts, values) in zip(("Priority", "Action"), lists, strict=True):
        lines += [title, *(rule.format(f, v) for f, v in zip(facts, values, strict=False)), default.format(values[-1])]
        fitting = [value for fact, value in zip(facts, values, strict=False) if holds[fact]] or [values[-1]]
        decision.append(fitting[-1 if last else 0])
    lines.append(rng.choice(LAST if last else FIRST))
    if rng.random() < 0.3:
        level, action = rng.choice(levels), rng.choice(ACTIONS)
        lines.append(
            rng.choice(("With priority {} the action is {} in any case.", "Priority {}: always {}.")).format(
                level, action
            )
        )
        decision[2] = action if decision[1] == level else decision[2]

    sentences = [rng.choice(FACTS[fact][0 if holds[fact] else 1]) for fact in dict.fromkeys(asked)]
    sentences.append(rng.choice(TOPICS[topic]))
    rng.shuffle(sentences)
    prompt = rng.choice(FRAMES).format(sheet="\n".join(lines), ticket=" ".join(sentences), format=FORMAT)
    return prompt, " | ".join(decision)


class Data(vf.TaskData):
    answer: str


class Problem(vf.Task[Data]):
    @vf.reward(weight=0.6)
    async def exact(self, trace: vf.Trace) -> float:
        return float(partial_credit(self.data.answer, trace.last_reply) > 0.999)

    @vf.reward(weight=0.4)
    async def close(self, trace: vf.Trace) -> float:
        return partial_credit(self.data.answer, trace.last_reply)


class Problems(vf.Taskset[Problem, vf.TasksetConfig]):
    def load(self) -> Iterator[Problem]:
        rng = random.Random(1)
        for idx in range(4000):
            prompt, answer = draw_problem(rng)
            yield Problem(Data(idx=idx, prompt=prompt, answer=answer), self.config.task)


__all__ = ["Problems"]
