"""Hidden world of `qwen-extract`: other sentences, names and notations, more gaps, and asides that tempt."""

from __future__ import annotations

from trainwright.suites.qwen.base import split_words
from trainwright.suites.qwen.extract import World

WORLD = World(
    texts={
        "vendor": split_words(
            """Okonkwo Timber,Halvorsen Marine,Brightwell Optics,Zelenka Glassworks,Costa & Figueira,Tanaka Precision,
            Ridgeline Roofing,Pemberton Dairy,Ostrava Castings,Bluefin Logistics,Larkspur Nurseries,Kestrel Avionics,
            Marigold Textiles,Hutchins Quarry,Vantongeren Pumps""",
            ",",
        ),
        "number": ("@@-####/##", "R##.####", "#####-@", "@#####"),
        "contact": split_words(
            """Siobhan Kealy,Mateus Ferraz,Aiko Watanabe,Thandiwe Nkosi,Rurik Aslaksen,Priya Raghavan,Lubomir Havel,
            Dolores Echeverria,Casper Van Houten,Yetunde Adeyemi,Nadezhda Orlova,Callum Strachan""",
            ",",
        ),
        "guest": split_words(
            """Marguerite Lacombe,Obinna Eze,Soren Kjeldsen,Leilani Kahale,Rashida Haddad,Benedikt Ackermann,
            Violeta Stoyanova,Hamish Dunbar,Noriko Fujita,Emeka Balogun,Carmen Iturbe,Tobias Lindqvist""",
            ",",
        ),
        "place": split_words(
            """Villa Quisisana,The Old Ropery,Casa Almendro,Gasthof Steinbock,Lodge Kittiwake,Pension Morgenrot,
            Ryokan Hinoki,The Glasshouse,Quinta da Ribeira,Fjordgarden,Riad Zitoun,The Copper Kettle""",
            ",",
        ),
        "code": ("@@@###", "##-@@-##", "@####@", "###@##"),
    },
    dates=(
        "{day}. {month} {year}",
        "{short} {day} {year}",
        "{year}/{number:02}/{day:02}",
        "the {day} of {month}, {year}",
    ),
    amounts=("{thousands}.{cents} euros", "USD {whole}.{cents}", "£{thousands}.{cents}", "{whole}.{cents} CHF"),
    years=(2027, 2036),
    openings=(
        "Good morning from our back office.",
        "To whom it may concern:",
        "** automatic message, replies are not read **",
        "Following up on our call, here are the particulars.",
        "Greetings!",
    ),
    facts={
        "invoice": {
            "vendor": ("Billed to you by {value}.", "{value} has sent you a bill.", "Sender of the bill: {value}"),
            "number": (
                "File this bill under {value}.",
                "Our ref. for this bill: {value}",
                "Bill no. {value} follows below.",
            ),
            "issued": ("We drew it up on {value}.", "Made out {value}.", "Billing day: {value}"),
            "due": (
                "Settlement is expected no later than {value}.",
                "Kindly transfer the money until {value}.",
                "Last day for payment: {value}",
            ),
            "total": ("What you owe comes to {value}.", "Balance payable: {value}", "Kindly remit {value}."),
            "contact": (
                "{value} will gladly help with queries.",
                "Queries go to {value} in accounts.",
                "Handled by: {value}",
            ),
        },
        "booking": {
            "guest": (
                "We are holding the room in the name of {value}.",
                "Traveller: {value}",
                "{value} will be our visitor.",
            ),
            "place": (
                "{value} looks forward to the visit.",
                "Accommodation: {value}",
                "The keys will be waiting at {value}.",
            ),
            "arrival": ("The room is ready from {value}.", "First night: {value}", "Check-in happens on {value}."),
            "nights": (
                "The stay lasts {value} nights.",
                "Nights reserved: {value}",
                "We keep the room for {value} nights.",
            ),
            "price": (
                "All nights together come to {value}.",
                "Whole stay: {value}",
                "Your card will be charged {value} for the stay.",
            ),
            "code": (
                "Show {value} at the desk to claim this reservation.",
                "Reservation key: {value}",
                "We filed the stay as {value}.",
            ),
        },
    },
    asides={
        "invoice": (
            "Your earlier bill {code} of {date} is settled, thank you.",
            "A reminder fee of {amount} applies to late payers.",
            "Bill {code} was cancelled and needs no payment.",
            "From {date} we deliver on Saturdays too.",
            "You saved {amount} through last year's rebate.",
            "Our new price list takes effect on {date}.",
        ),
        "booking": (
            "Your cancelled reservation {code} has been refunded.",
            "The spa reopens on {date}.",
            "A parking space would be {amount} a week.",
            "Last year you came on {date}.",
            "Pets are charged {amount} each.",
            "Voucher {code} expired on {date}.",
        ),
    },
    aside_count=(1, 3),
    closings=("Yours faithfully", "The accounts team", "With compliments", "Sent from a shared mailbox"),
    missing=0.25,
    frames=(
        "MAIL\n====\n{mail}\n====\nFill in this form as one JSON object (null where the mail is "
        "silent):\n{schema}\n{format}",
        "Turn the message below into JSON. Keys:\n{schema}\nWhatever is not stated becomes null. "
        '{format}\n"""\n{mail}\n"""',
        "{mail}\n\n-----\nWhich of the following does the text above state? Answer as a JSON object, unknown values "
        "as null.\n"
        "{schema}\n{format}",
    ),
)
