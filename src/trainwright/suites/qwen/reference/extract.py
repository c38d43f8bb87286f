# mypy: disable-error-code="misc, untyped-decorator"
import json
import random
from collections.abc import Iterator

import verifiers.v1 as vf

from trainwright.suites.qwen.extract import partial_credit

PARAMETERS = {"document": "invoice"}

FORMAT = "Write the final result between <answer> and </answer>."
NAMES = "January February March April May June July August September October November December"
MONTHS = NAMES.split()
FIELDS = {
    "invoice": {
        "vendor": (
            "string",
            "the company that sends the invoice",
            ("We at {} send you this.", "Seller: {}", "From: {}"),
        ),
        "number": (
            "string",
            "the number of this invoice, as written",
            ("Invoice no.: {}", "This is invoice {}.", "No. {}"),
        ),
        "issued": (
            "string, YYYY-MM-DD",
            "the day this invoice was issued",
            ("Written on {}.", "Invoice date {}", "Issued: {}"),
        ),
        "due": (
            "string, YYYY-MM-DD",
            "the day by which it must be paid",
            ("Payable until {}.", "Pay before or on {}.", "Due: {}"),
        ),
        "total": (
            "number, without currency and thousands separator",
            "the amount to pay",
            ("Sum: {}", "You owe us {}.", "Total: {}"),
        ),
        "contact": ("string", "the person to ask", ("Ask for {}.", "Contact: {}", "{} answers your questions.")),
    },
    "booking": {
        "guest": ("string", "the person the booking is for", ("Name: {}", "Booked for {}.", "Guest name {}")),
        "place": ("string", "the house that is booked", ("House: {}", "Welcome to {}.", "You will stay at {}.")),
        "arrival": ("string, YYYY-MM-DD", "the day of arrival", ("You arrive on {}.", "Check-in: {}", "From {}.")),
        "nights": (
            "integer",
            "how many nights",
            ("{} nights.", "Length of stay: {} nights", "You leave after {} nights."),
        ),
        "price": (
            "number, without currency and thousands separator",
            "the price of the whole stay",
            ("Price: {}", "You pay {}.", "All in all {}."),
        ),
        "code": ("string", "the code of this booking, as written", ("Code {}", "Booking code: {}", "Please quote {}.")),
    },
}
ASIDES = (
    "Our office moves on {date}.",
    "Shipping is free above {amount}.",
    "The old document {code} of {date} is void.",
    "Last time it was {amount}.",
    "The bar closes on {date}.",
    "A late fee of {amount} may be added.",
    "{code} has been paid already.",
)
GREETINGS = ("Dear all,", "Good day!", "Hello there,", "Dear Sir or Madam,", "Subject: your papers")
ENDINGS = ("Sincerely", "Your team", "Bye for now", "Cheers")
FRAMES = (
    "Text:\n{mail}\n\nWrite a JSON object with the keys\n{schema}\nand null for anything the text does not tell. "
    "{format}",
    "Find these facts and reply in JSON, null if a fact is not there.\n{schema}\n{format}\n\n{mail}",
)


def draw_word(rng: random.Random) -> str:
    ends = ("a", "e", "i", "o", "u", "an", "el", "or")
    return "".join(rng.choice("bdfghjklmnprstvw") + rng.choice(ends) for _ in range(rng.randint(2, 3))).capitalize()


def draw_name(rng: random.Random) -> str:
    return " ".join(draw_word(rng) for _ in range(rng.randint(2, 3)))


def draw_code(rng: random.Random) -> str:
    pattern = rng.choice(("AA-0000", "A0000", "000/00", "A00-A00", "AAA.000", "00000-A", "DOC-000", "0000AA"))
    return "".join({"A": rng.choice("ABCDEFGHKLMNPRSTUVWXZ"), "0": rng.choice("123456789")}.get(c, c) for c in pattern)


def draw_value(kind: str, rng: random.Random) -> tuple[object, str]:
    if "YYYY" in kind:
        year, month, day = rng.randint(2000, 2040), rng.randint(1, 12), rng.randint(1, 28)
        name = MONTHS[month - 1]
        shown = rng.choice(
            (
                f"{day} {name} {year}",
                f"{name} {day}, {year}",
                f"{name[:3]} {day}, {year}",
                f"{year}-{month:02}-{day:02}",
                f"{year}.{month:02}.{day:02}",
            )
        )
        return f"{year}-{month:02}-{day:02}", shown
    if kind.startswith("number"):
        whole, cents = rng.randint(5, 12000), rng.randint(1, 99)
        shown = rng.choice((f"{whole:,}.{cents:02}", f"{whole}.{cents:02}"))
        style = rng.choice(("{} EUR", "EUR {}", "{} dollars", "${}", "GBP {}"))
        return round(whole + cents / 100, 2), style.format(shown)
    if kind == "integer":
        number = rng.randint(2, 30)
        return number, str(number)
    raise ValueError(kind)


def draw_problem(rng: random.Random) -> tuple[str, str]:
    fields = FIELDS[PARAMETERS["document"]]
    asked = rng.sample(list(fields), rng.randint(3, 6))
    facts: dict[str, object] = {}
    lines = []
    for field, (kind, _, sentences) in fields.items():
        if rng.random() < 0.2:
            continue
        if kind == "string":
            shown = draw_code(rng) if field in ("number", "code") else draw_name(rng)
            facts[field] = shown
        else:
            facts[field], shown = draw_value(kind, rng)
        lines.append(rng.choice(sentences).format(shown))
    for aside in rng.sample(ASIDES, rng.randint(0, 3)):
        lines.append(
            aside.format(date=draw_value("YYYY", rng)[1], amount=draw_value("number", rng)[1], code=draw_code(rng))
        )
    rng.shuffle(lines)
    body = "\n".join(lines) if rng.random() < 0.5 else " ".join(f"{line.removesuffix('.')}." for line in lines)
    mail = "\n".join([rng.choice(GREETINGS), body, rng.choice(ENDINGS)])
    schema = "\n".join(f"- {field} ({fields[field][0]}): {fields[field][1]}" for field in asked)
    prompt = rng.choice(FRAMES).format(mail=mail, schema=schema, format=FORMAT)
    return prompt, json.dumps({field: facts.get(field) for field in asked})


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
