"""`qwen-extract`: read an e-mail and return its facts as a JSON object of a given schema, null where one is missing."""

from __future__ import annotations

import datetime
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass

from trainwright.suites.family import Item
from trainwright.suites.qwen.answers import REPLY_FORMAT, NotAnswered, parse_json, same_json
from trainwright.suites.qwen.base import Parameters, QwenFamily, split_words

SCHEMAS = {
    "invoice": {
        "vendor": ("text", "the company that sends the invoice"),
        "number": ("text", "the number of this invoice, as written"),
        "issued": ("date", "the day this invoice was issued"),
        "due": ("date", "the day by which it must be paid"),
        "total": ("amount", "the amount to pay"),
        "contact": ("text", "the person to ask"),
    },
    "booking": {
        "guest": ("text", "the person the booking is for"),
        "place": ("text", "the house that is booked"),
        "arrival": ("date", "the day of arrival"),
        "nights": ("integer", "how many nights"),
        "price": ("amount", "the price of the whole stay"),
        "code": ("text", "the code of this booking, as written"),
    },
}
TYPES = {
    "text": "string",
    "date": "string, YYYY-MM-DD",
    "amount": "number, without currency and thousands separator",
    "integer": "integer",
}
DAYS_AFTER = {"issued": (0, 0), "due": (7, 60), "arrival": (0, 0)}
MONTHS = split_words("January February March April May June July August September October November December")


@dataclass(frozen=True)
class World:
    """How items look.

    `texts` gives the words of each text field; in them `#` stands for a digit and `@` for a capital letter. `facts`
    are the sentences that state a field, with `{value}`. `asides` are true sentences about something else; in them
    `{date}`, `{amount}` and `{code}` are filled with values that are nobody's answer.
    """

    texts: Mapping[str, tuple[str, ...]]
    dates: tuple[str, ...]
    amounts: tuple[str, ...]
    years: tuple[int, int]
    openings: tuple[str, ...]
    facts: Mapping[str, Mapping[str, tuple[str, ...]]]
    asides: Mapping[str, tuple[str, ...]]
    aside_count: tuple[int, int]
    closings: tuple[str, ...]
    missing: float
    frames: tuple[str, ...]


WORLD = World(
    texts={
        "vendor": split_words(
            "Baker Supplies,Miller Tools,Green Garden,City Print,North Paper,Sun Office,Lake Foods", ","
        ),
        "number": ("INV-####", "INV-#####"),
        "contact": split_words("Anna Schmidt,Ben Carter,Carla Gomez,David Brown,Emma Wilson,Frank Meyer", ","),
        "guest": split_words("Grace Hill,Henry Adams,Irene Lopez,Jack Turner,Karen White,Leo Martin", ","),
        "place": split_words("Hotel Central,Hotel Bellevue,Park Inn,Sea View,Grand Hotel,Station Hotel", ","),
        "code": ("B-####", "B-#####"),
    },
    dates=("{day} {month} {year}", "{month} {day}, {year}"),
    amounts=("EUR {thousands}.{cents}", "${thousands}.{cents}"),
    years=(2020, 2025),
    openings=("Hello,", "Dear customer,", "Hi,"),
    facts={
        "invoice": {
            "vendor": ("This invoice comes from {value}.", "Thank you for buying from {value}."),
            "number": ("The invoice number is {value}.", "Invoice {value} is attached."),
            "issued": ("It was issued on {value}.", "Date of issue: {value}."),
            "due": ("Please pay by {value}.", "It is due on {value}."),
            "total": ("The total is {value}.", "The amount to pay is {value}."),
            "contact": ("If you have questions, ask {value}.", "Your contact is {value}."),
        },
        "booking": {
            "guest": ("The booking is for {value}.", "Guest: {value}."),
            "place": ("You booked {value}.", "Your stay is at {value}."),
            "arrival": ("Arrival is on {value}.", "We expect you on {value}."),
            "nights": ("You stay for {value} nights.", "Number of nights: {value}."),
            "price": ("The stay costs {value} in all.", "The total price is {value}."),
            "code": ("Your booking code is {value}.", "Booking {value} is confirmed."),
        },
    },
    asides={
        "invoice": ("We will close for stock-taking on {date}.", "Orders above {amount} ship free."),
        "booking": ("The pool is closed until {date}.", "Breakfast costs {amount} extra."),
    },
    aside_count=(0, 1),
    closings=("Best regards", "Kind regards", "Thank you"),
    missing=0.1,
    frames=(
        "Read this e-mail and return a JSON object with these keys:\n{schema}\nUse null for what it does not say. "
        "{format}\n\n{mail}",
    ),
)


def partial_credit(answer: str, reply: str) -> float:
    """Return 0.1 for one answer block, 0.2 for a JSON object in it, and up to 0.8 more for right fields."""
    import json

    if reply.count("<answer>") != 1 or reply.count("</answer>") != 1:
        return 0.0
    try:
        given = json.loads(reply.partition("<answer>")[2].partition("</answer>")[0])
    except (ValueError, RecursionError):
        return 0.1
    if not isinstance(given, dict):
        return 0.1
    wanted = json.loads(answer)
    right = sum(key in given and json.dumps(given[key]) == json.dumps(wanted[key]) for key in wanted)
    return (2 + 8 * right / len(wanted.keys() | given.keys())) / 10


class Extract(QwenFamily[World]):
    """Return the facts of an e-mail as JSON; tasks differ in the kind of e-mail and so in the schema."""

    name = "qwen-extract"
    variants = ({"document": "invoice"}, {"document": "booking"})
    visible_examples = 5
    max_completion_tokens = 192
    form = (
        "It holds one JSON object with exactly the keys asked for, in any order; every value must be right in value "
        "and type, and null where the e-mail does not state it."
    )
    difference = (
        "other layouts and sentences, other ways to write dates, amounts and codes, more missing facts, and sentences "
        "about other dates, amounts and codes that must not be taken."
    )
    partial_credit = staticmethod(partial_credit)
    world = WORLD

    def instruction(self, parameters: Parameters) -> str:
        kind = str(parameters["document"])
        return (
            f"Extract facts from an e-mail about {'an invoice' if kind == 'invoice' else 'a booking'} as a JSON "
            f"object. Each prompt asks for three to six of these keys:\n{show_schema(kind, list(SCHEMAS[kind]))}"
        )

    def item(self, parameters: Parameters, world: World, rng: random.Random) -> Item | None:
        kind = str(parameters["document"])
        schema = SCHEMAS[kind]
        asked = rng.sample(list(schema), rng.randint(3, len(schema)))
        day = datetime.date(rng.randint(*world.years), 1, 1) + datetime.timedelta(rng.randrange(365))
        facts: dict[str, object] = {}
        sentences = []
        for field, (form, _) in schema.items():
            if rng.random() < world.missing:
                continue
            facts[field], value = draw_value(field, form, day, world, rng)
            sentences.append(rng.choice(world.facts[kind][field]).format(value=value))
        answer = {field: facts.get(field) for field in asked}
        if sum(value is not None for value in answer.values()) < 2:
            return None
        sentences += [
            aside.format(
                date=draw_value("aside", "date", day, world, rng)[1],
                amount=draw_value("aside", "amount", day, world, rng)[1],
                code=fill_pattern(rng.choice(world.texts["number" if kind == "invoice" else "code"]), rng),
            )
            for aside in rng.sample(world.asides[kind], rng.randint(*world.aside_count))
        ]
        rng.shuffle(sentences)
        if rng.random() < 0.5:
            middle = "\n".join(sentences)
        else:
            middle = " ".join(sentence if sentence.endswith(".") else f"{sentence}." for sentence in sentences)
        mail = f"{rng.choice(world.openings)}\n{middle}\n{rng.choice(world.closings)}"
        prompt = rng.choice(world.frames).format(schema=show_schema(kind, asked), mail=mail, format=REPLY_FORMAT)
        return Item(prompt, json.dumps(answer, ensure_ascii=False))

    def right(self, item: Item, block: str) -> bool:
        try:
            return same_json(parse_json(block), parse_json(item.answer))
        except NotAnswered:
            return False


def show_schema(kind: str, fields: list[str]) -> str:
    """Return one line a field: name, JSON type, meaning."""
    return "\n".join(f"- {field} ({TYPES[SCHEMAS[kind][field][0]]}): {SCHEMAS[kind][field][1]}" for field in fields)


def draw_value(field: str, form: str, day: datetime.date, world: World, rng: random.Random) -> tuple[object, str]:
    """Return a value as the JSON answer holds it and as the e-mail writes it; dates lie around `day`."""
    match form:
        case "date":
            date = day + datetime.timedelta(rng.randint(*DAYS_AFTER.get(field, (-300, 300))))
            month = MONTHS[date.month - 1]
            style = rng.choice(world.dates)
            return str(date), style.format(
                day=date.day, month=month, short=month[:3], number=date.month, year=date.year
            )
        case "amount":
            whole, cents = rng.randint(20, 200 if field == "aside" else 9999), rng.randint(1, 99)
            style = rng.choice(world.amounts)
            shown = style.format(whole=whole, thousands=f"{whole:,}", cents=f"{cents:02}")
            return round(whole + cents / 100, 2), shown
        case "integer":
            nights = rng.randint(2, 21)
            return nights, str(nights)
    text = fill_pattern(rng.choice(world.texts[field]), rng)
    return text, text


def fill_pattern(pattern: str, rng: random.Random) -> str:
    """Return the pattern with every `#` as a digit (never a leading zero) and every `@` as a capital letter."""
    letters = {"#": "123456789", "@": "ABCDEFGHJKLMNPQRSTUVWXYZ"}
    return "".join(rng.choice(letters[c]) if c in letters else c for c in pattern)
