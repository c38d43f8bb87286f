"""Hidden world of `qwen-tools`: other tools, other argument names, nested arguments, longer lists."""

from __future__ import annotations

from trainwright.suites.qwen.base import split_words
from trainwright.suites.qwen.tools import Argument, Tool, World

PLACES = split_words(
    """Bruges Cusco Dakar Galway Hanoi Leipzig Malmo Nairobi Porto Quito Tbilisi Zagreb Aarhus Bergamo Cork Durban
    Erfurt Fukuoka Gdansk Izmir Kaunas Leon Mombasa Nantes Oulu Plovdiv Recife Split"""
)
PEOPLE = ("Siobhan", "Mateus", "Aiko", "Thandiwe", "Rurik", "Priya", "Lubomir", "Dolores", "Casper", "Yetunde")
CURRENCIES = ("NOK", "PLN", "ZAR", "THB", "MXN", "SEK", "CHF", "TRY", "INR", "KRW")
ROOMS = ("attic", "cellar", "conservatory", "hallway", "nursery", "pantry", "study", "workshop")
CODES = tuple(f"{letter}{number}" for letter in "KLMQRTVX" for number in range(217, 998, 13))
CLOCK = tuple(f"{hour:02}:{minute:02}" for hour in range(7, 22) for minute in (0, 10, 20, 40, 50))

WORLD = World(
    tools=(
        Tool(
            "reserve_table",
            "reserve a table at a restaurant",
            (
                Argument(
                    "venue",
                    ("Copper Kettle", "Blue Heron", "Old Ropery", "Olive Branch", "Lantern House", "Tin Whistle"),
                ),
                Argument("party.adults", (2, 12)),
                Argument("party.children", (2, 8), optional=True),
                Argument("at", CLOCK),
            ),
            (
                "reserve a table at the <venue> for <party.adults> adults and <party.children> children at <at>",
                "reserve a table at the <venue> at <at> for <party.adults> adults",
            ),
        ),
        Tool(
            "shift_date",
            "move a date forward",
            (
                Argument(
                    "origin",
                    tuple(
                        f"20{year}-{month:02}-{day:02}"
                        for year in (27, 31, 36)
                        for month in range(1, 13)
                        for day in range(1, 29, 2)
                    ),
                ),
                Argument("by.amount", (2, 40)),
                Argument("by.unit", ("days", "weeks", "months", "years")),
            ),
            ("find the date <by.amount> <by.unit> after <origin>", "push <origin> back by <by.amount> <by.unit>"),
        ),
        Tool(
            "exchange",
            "quote what an amount of one currency is worth in another",
            (
                Argument("sum", (15, 9000)),
                Argument("pair.source", CURRENCIES[:5]),
                Argument("pair.target", CURRENCIES[5:]),
            ),
            (
                "quote <sum> <pair.source> in <pair.target>",
                "find out how much <pair.target> one gets for <sum> <pair.source>",
            ),
        ),
        Tool(
            "percentage",
            "compute a percentage of a whole",
            (Argument("rate", (3, 97)), Argument("whole", (40, 8000))),
            ("compute <rate> percent of <whole>", "take <whole> and give me <rate> percent of it"),
        ),
        Tool(
            "subtract_values",
            "take the subtrahend away from the minuend",
            (Argument("minuend", (500, 5000)), Argument("subtrahend", (2, 499))),
            ("take <subtrahend> away from <minuend>", "compute <minuend> minus <subtrahend>"),
        ),
        Tool(
            "plan_route",
            "plan a journey; any means of transport unless one is named",
            (
                Argument("leg.start", PLACES[:14]),
                Argument("leg.finish", PLACES[14:]),
                Argument("transport", ("train", "coach", "ferry", "bicycle"), optional=True),
            ),
            (
                "plan a journey from <leg.start> to <leg.finish> by <transport>",
                "plan how to get from <leg.start> to <leg.finish>",
                "plan a <transport> journey that ends in <leg.finish> and begins in <leg.start>",
            ),
        ),
        Tool(
            "track_parcel",
            "say where a parcel is",
            (
                Argument("parcel", CODES),
                Argument("courier", ("Swiftline", "Norpost", "Kestrel", "Hermod"), optional=True),
            ),
            ("find parcel <parcel> that <courier> carries", "find out where parcel <parcel> is"),
        ),
        Tool(
            "set_heating",
            "set the heating of a room, until switched off unless hours are given",
            (Argument("room", ROOMS), Argument("degrees", (12, 27)), Argument("hours", (2, 11), optional=True)),
            (
                "heat the <room> to <degrees> degrees for <hours> hours",
                "keep the <room> at <degrees> degrees",
                "bring the temperature of the <room> to <degrees> degrees and hold it for <hours> hours",
            ),
        ),
        Tool(
            "schedule_meeting",
            "put a meeting into the calendar",
            (
                Argument("with", PEOPLE),
                Argument("slot.weekday", ("Mon", "Tue", "Wed", "Thu", "Fri")),
                Argument("slot.time", CLOCK),
                Argument("length", (15, 95), optional=True),
            ),
            (
                "put a meeting with <with> on <slot.weekday> at <slot.time> into the calendar",
                "arrange for <length> minutes with <with> on <slot.weekday> at <slot.time>",
            ),
        ),
        Tool(
            "stock_level",
            "say how many pieces of an article a warehouse holds",
            (Argument("article", CODES), Argument("warehouse", PLACES)),
            (
                "check how many pieces of article <article> the <warehouse> warehouse holds",
                "ask <warehouse> for its stock of <article>",
            ),
        ),
        Tool(
            "resize_image",
            "change the size of an image, in pixels",
            (
                Argument(
                    "file",
                    tuple(f"{name}.png" for name in ("heron", "lagoon", "quarry", "sundial", "trellis", "viaduct")),
                ),
                Argument("size.width", (120, 1900)),
                Argument("size.height", (120, 1900), optional=True),
            ),
            (
                "resize <file> to <size.width> by <size.height> pixels, width first",
                "resize <file> to a width of <size.width> pixels",
            ),
        ),
        Tool(
            "send_funds",
            "send money to somebody",
            (
                Argument("recipient", PEOPLE),
                Argument("amount.value", (11, 4000)),
                Argument("amount.currency", CURRENCIES),
                Argument("memo", ("rent", "groceries", "deposit", "tickets", "fuel"), optional=True),
            ),
            (
                "send <amount.value> <amount.currency> to <recipient> with the memo <memo>",
                "let <recipient> have <amount.value> <amount.currency>",
            ),
        ),
    ),
    listed=(3, 5),
    joints=("{first}, and once that is done {second}", "{first}; after that I need you to {second}"),
    frames=(
        "You can call these functions:\n{tools}\n\nUser: Could you {request}?\n\nReply with a JSON array of {call}. "
        "{format}",
        "User: I would like you to {request}. Thanks!\n\nFunctions on offer:\n{tools}\n\nWhich calls serve the user? "
        "Give a JSON array of {call}. {format}",
        "# functions\n{tools}\n# user\n{Request}.\n# answer\nA JSON array, each element {call}. {format}",
    ),
)
