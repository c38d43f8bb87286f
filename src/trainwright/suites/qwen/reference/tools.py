# mypy: disable-error-code="misc, untyped-decorator"
import json
import random
from collections.abc import Iterator

import verifiers.v1 as vf

from trainwright.suites.qwen.tools import partial_credit

PARAMETERS = {"calls": "two"}

CALL = '{"name": ..., "arguments": {...}}'
FORMAT = "Write the final result between <answer> and </answer>."
FRAMES = (
    "Available tools:\n{tools}\n\n{request}\n\nAnswer with a JSON list, each element {call}. {format}",
    "{request}\n\nUse these tools:\n{tools}\nList the calls in JSON as {call}. {format}",
    'The assistant has tools.\n{tools}\nThe user says: "{request}"\nNow write the JSON list of {call}. {format}',
)
JOINTS = ("{} After this, {}", "{} Next, {}", "{} When finished, {}")
VERBS = ("fetch", "open", "update", "check", "book", "print", "start", "find", "measure", "order", "cancel", "rename")
NOUNS = ("file", "lamp", "ticket", "report", "flight", "account", "song", "order", "plant", "sensor", "photo", "road")
NAMES = (
    "target",
    "amount",
    "speed",
    "color",
    "owner",
    "size",
    "level",
    "when",
    "id",
    "place",
    "mode",
    "limit",
    "price",
    "kind",
)
WORDS = (
    "red",
    "north",
    "fast",
    "maria",
    "oslo",
    "weekly",
    "box",
    "draft",
    "noon",
    "Z14",
    "alpha",
    "garden",
    "12:30",
    "2025-05-17",
)


def draw_tool(rng: random.Random) -> tuple[str, str, list[tuple[str, str, bool]]]:
    """Return name, purpose and arguments (name, type, optional) of an invented tool; a dot in a name nests it."""
    verb, noun = rng.choice(VERBS), rng.choice(NOUNS)
    names = rng.sample(NAMES, rng.randint(2, 4))
    if rng.random() < 0.4:
        outer = rng.choice(("details", "options", "data"))
        names[-2:] = [f"{outer}.{name}" for name in names[-2:]]
    arguments = [
        (name, rng.choice(("integer", "string")), i > 0 and rng.random() < 0.3) for i, name in enumerate(names)
    ]
    return f"{verb}_{noun}", f"{verb} a {noun}", arguments


def signature(tool: tuple[str, str, list[tuple[str, str, bool]]]) -> str:
    name, purpose, arguments = tool
    shown: dict[str, list[str]] = {}
    for argument, kind, optional in arguments:
        outer, dot, inner = argument.partition(".")
        shown.setdefault(outer + dot, []).append(
            (f"{inner}: {kind}" if dot else kind) + (", optional" if optional else "")
        )
    parts = [
        f"{outer[:-1]}: {{{', '.join(kinds)}}}" if outer.endswith(".") else f"{outer}: {kinds[0]}"
        for outer, kinds in shown.items()
    ]
    return f"- {name}({', '.join(parts)}) - {purpose}"


def ask(tool: tuple[str, str, list[tuple[str, str, bool]]], rng: random.Random) -> tuple[str, dict[str, object]]:
    name, purpose, arguments = tool
    given: dict[str, object] = {}
    said = []
    for argument, kind, optional in arguments:
        if optional and rng.random() < 0.5:
            continue
        value: object = rng.randint(1, 5000) if kind == "integer" else rng.choice(WORDS)
        outer, _, inner = argument.partition(".")
        if inner:
            nested = given.setdefault(outer, {})
            nested[inner] = value  # type: ignore[index]
        else:
            given[outer] = value
        said.append(
            rng.choice(("{1} as {0}", "{0} {1}", "the {0} being {1}", "{0} = {1}")).format(inner or outer, value)
        )
    rng.shuffle(said)
    request = rng.choice(("please {} with {}.", "{}, {}.", "I want to {}: {}.")).format(purpose, ", ".join(said))
    return request, {"name": name, "arguments": given}


def draw_problem(rng: random.Random) -> tuple[str, str]:
    tools = list({tool[0]: tool for tool in (draw_tool(rng) for _ in range(rng.randint(3, 5)))}.values())
    two = PARAMETERS["calls"] == "two" and len(tools) > 1 and rng.random() < 0.5
    asked = [ask(tool, rng) for tool in rng.sample(tools, 2 if two else 1)]
    request = rng.choice(JOINTS).format(*(text for text, _ in asked)) if two else asked[0][0]
    prompt = rng.choice(FRAMES).format(
        tools="\n".join(map(signature, tools)), request=request[0].upper() + request[1:], call=CALL, format=FORMAT
    )
    return prompt, json.dumps([call for _, call in asked])


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
