"""Hidden world of `qwen-sort`: longer lists, other names, fields and wordings."""

from __future__ import annotations

from trainwright.suites.qwen.base import split_words
from trainwright.suites.qwen.sort import Field, World

WORLD = World(
    names=split_words(
        """Abdou Birgit Chiara Dmitri Eluned Fatima Goran Hye-jin Ingrid Jorge Kwame Lakshmi Malik Niamh Oksana
        Piotr Quentin Rasmus Saoirse Tomasz Ulrike Vikram Wanjiru Xiomara Yusuf Zsofia Amaru Bronwyn Desta Eirik
        Farouk Gulnara Hamza Isolde Jelena Kofi"""
    ),
    fields=(
        Field("deposit", "number", (20, 900)),
        Field("floor", "number", (1, 60)),
        Field("mileage", "number", (1000, 9999)),
        Field("voltage", "number", (110, 480)),
        Field("seats", "number", (2, 90)),
        Field("altitude", "number", (15, 4800)),
        Field("grade", "text", ("amber", "copper", "ivory", "jade", "onyx", "pearl", "ruby")),
        Field(
            "district",
            "text",
            ("Altona", "Docklands", "Gracia", "Kreuzberg", "Moema", "Palermo", "Shibuya", "Trastevere"),
        ),
        Field("material", "text", ("brass", "cedar", "felt", "granite", "linen", "oak", "slate", "wool")),
        Field("inspected", "date", (2009, 2031)),
        Field("expires", "date", (2026, 2039)),
    ),
    rows=(6, 14),
    groups=(2, 4),
    orders={
        "number": (
            ("with growing values", "beginning with the minimum"),
            ("with shrinking values", "beginning with the maximum"),
        ),
        "text": (("as in a dictionary", "from A towards Z"), ("as in a dictionary read backwards", "from Z towards A")),
        "date": (
            ("with the past first", "in chronological order"),
            ("with the future first", "in reverse chronological order"),
        ),
    },
    requests=(
        "The leading key is {first}, {first_order}. Records that share it follow {second}, {second_order}.",
        "Arrange them by {first}, {first_order}; whenever two agree there, arrange those two by {second}, "
        "{second_order}.",
        "Line up the entries by {first} ({first_order}), ties resolved by {second} ({second_order}).",
    ),
    frames=(
        "Register:\n{records}\n\n{request}\nState just the resulting sequence of names as a comma-separated line. "
        "{format}",
        "{request}\n\n{records}\n\nWhat is the sequence of names? Put commas between them. {format}",
        "An archive needs tidying. {request} {format} Name after name, divided by commas, no other "
        "columns.\n---\n{records}\n---",
    ),
    header="holder",
)
