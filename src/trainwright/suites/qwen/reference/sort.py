# mypy: disable-error-code="misc, untyped-decorator"
import random
from collections.abc import Iterator

import verifiers.v1 as vf

from trainwright.suites.qwen.sort import partial_credit

PARAMETERS = {"layout": "table"}

FORMAT = "Write the final result between <answer> and </answer>."
FRAMES = (
    "{records}\n\nPut the names in order: {first}, and among equals {second}. Separate them by commas. {format}",
    "Order these records: {first}. Break ties like this: {second}. Reply with the names and commas only. "
    "{format}\n{records}",
    "Rank the entries below. First criterion: {first}. Second criterion: {second}. Names only, comma "
    "separated.\n{records}\n{format}",
)
NUMBERS = ("rank", "weight", "level", "count", "size", "code", "number", "speed", "value", "length", "cost", "rate")
DATES = ("day", "since", "made on", "checked", "born", "last seen")
WORDS = ("kind", "place", "type", "part", "label", "side")
ORDERS = {
    "number": (
        "ascending, the least value at the top",
        "descending, the greatest value at the top",
        "lowest first",
        "highest first",
    ),
    "date": ("earliest first", "latest first", "by time, oldest at the top", "by time, most recent at the top"),
    "word": ("A to Z", "Z to A", "in dictionary order", "against dictionary order"),
}


def draw_word(rng: random.Random) -> str:
    return "".join(rng.choice("bdfgklmnprstvz") + rng.choice("aeiou") for _ in range(rng.randint(2, 3)))


def draw_value(kind: str, width: int, rng: random.Random) -> int | str:
    if kind == "number":
        return rng.randint(10 ** (width - 1), 10**width)
    if kind == "date":
        return f"{rng.randint(1990, 2035)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"
    return draw_word(rng)


def draw_problem(rng: random.Random) -> tuple[str, str]:
    columns = [
        *rng.sample([(name, "number") for name in NUMBERS], 2),
        (rng.choice(DATES), "date"),
        (rng.choice(WORDS), "word"),
    ]
    columns = rng.sample(columns, 3)
    (first, first_kind), (second, second_kind) = rng.sample(columns, 2)
    names = list(dict.fromkeys(draw_word(rng).capitalize() for _ in range(rng.randint(4, 12))))
    widths = {column: rng.randint(2, 4) for column, _ in columns}
    shared = [draw_value(first_kind, widths[first], rng) for _ in range(rng.randint(2, 4))]
    records = {
        name: {c: rng.choice(shared) if c == first else draw_value(kind, widths[c], rng) for c, kind in columns}
        for name in names
    }
    while len({record[second] for record in records.values()}) < len(names):
        for record in records.values():
            record[second] = draw_value(second_kind, widths[second], rng)
    i, j = rng.randrange(4), rng.randrange(4)
    order = sorted(names, key=lambda name: records[name][second], reverse=j % 2 == 1)
    order.sort(key=lambda name: records[name][first], reverse=i % 2 == 1)
    if PARAMETERS["layout"] == "list":
        lines = [f"- {name}: " + ", ".join(f"{c} {v}" for c, v in record.items()) for name, record in records.items()]
    else:
        lines = [" | ".join(["name", *(c for c, _ in columns)])]
        lines += [" | ".join([name, *map(str, record.values())]) for name, record in records.items()]
    prompt = rng.choice(FRAMES).format(
        records="\n".join(lines),
        first=f"{first}, {ORDERS[first_kind][i]}",
        second=f"{second}, {ORDERS[second_kind][j]}",
        format=FORMAT,
    )
    return prompt, ", ".join(order)


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
