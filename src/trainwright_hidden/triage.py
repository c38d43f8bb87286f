"""Hidden world of `qwen-triage`: other desks, facts and sheet wordings, more exceptions, both orders of precedence."""

from __future__ import annotations

from trainwright.suites.qwen.triage import Domain, Fact, Topic, World

WORLD = World(
    domains=(
        Domain(
            desk="hospital equipment hotline",
            topics=(
                Topic("infusion pumps", ("The drip machine stops in mid-dose.", "Our dosing unit beeps without end.")),
                Topic("beds", ("The headrest no longer tilts up.", "One side rail of a patient's bed will not lock.")),
                Topic("imaging", ("The scanner leaves stripes over each picture.", "X-ray plates come out black.")),
                Topic(
                    "sterilisers",
                    ("The autoclave ends its cycle too early.", "Instruments leave the steam chamber wet."),
                ),
                Topic("monitors", ("The heart-rate display freezes.", "A ward screen shows another patient's pulse.")),
                Topic(
                    "oxygen supply",
                    ("Pressure in the breathing-gas line drops at night.", "A wall outlet for breathing gas hisses."),
                ),
            ),
            queues=("fluid team", "furniture bay", "radiology crew", "hygiene cell", "signal lab", "gas squad"),
            actions=(
                "lend a spare unit",
                "dispatch a technician",
                "seal the device",
                "log for the audit",
                "guide by video",
                "notify the maker",
            ),
            facts=(
                Fact(
                    "a patient depends on the device",
                    ("A patient is attached to it as I write.",),
                    ("No patient is using it.",),
                ),
                Fact("the ward is an intensive care ward", ("We are intensive care.",), ("We are an ordinary ward.",)),
                Fact(
                    "the warranty has run out", ("Its warranty ended two years ago.",), ("It is still under warranty.",)
                ),
                Fact(
                    "the fault was seen more than once",
                    ("That is the fourth time this month.",),
                    ("We saw it a single time.",),
                ),
                Fact(
                    "a spare is at hand",
                    ("We do have a second one in the cupboard.",),
                    ("There is no second one on our floor.",),
                ),
                Fact("the caller is a physician", ("I am the physician on duty.",), ("I am a nurse on this floor.",)),
                Fact("the device is rented", ("The machine is on hire.",), ("The hospital owns the machine.",)),
            ),
            openings=("Report from the ward:", "Night shift here."),
            closings=("End of report.", "We are standing by."),
        ),
        Domain(
            desk="airline service centre",
            topics=(
                Topic("baggage", ("My suitcase never came out on the belt.", "A wheel was torn off my trunk.")),
                Topic(
                    "rebooking", ("I have to fly a day later than planned.", "Could you put me on the evening flight?")
                ),
                Topic(
                    "seating",
                    ("Our family was placed in four different rows.", "I was promised a window and got the aisle."),
                ),
                Topic("meals", ("My vegan tray was missing.", "There was nothing without nuts on board.")),
                Topic("mileage", ("The points for my last trip were never credited.", "My bonus points vanished.")),
                Topic(
                    "pets on board", ("I want to take my beagle along in the cabin.", "What crate does my cat need?")
                ),
            ),
            queues=("luggage hall", "ticket counter", "cabin planning", "catering", "loyalty club", "animal care"),
            actions=(
                "issue a voucher",
                "open an inquiry",
                "ring the passenger",
                "close as settled",
                "forward to the station",
                "request the boarding pass",
            ),
            facts=(
                Fact("the passenger holds a gold card", ("My card is the gold one.",), ("I hold no status card.",)),
                Fact(
                    "departure is within 24 hours",
                    ("I depart tonight.", "My plane leaves in nine hours."),
                    ("I depart next month.",),
                ),
                Fact(
                    "the passenger is travelling with an infant",
                    ("Our baby of eight months is with us.",),
                    ("No infants are travelling with me.",),
                ),
                Fact(
                    "the ticket was bought through an agency",
                    ("A travel agency issued my ticket.",),
                    ("I bought the ticket on your own site.",),
                ),
                Fact(
                    "the flight was a partner's",
                    ("The aircraft belonged to your partner airline.",),
                    ("It was one of your own aircraft.",),
                ),
                Fact(
                    "the passenger encloses a receipt", ("The receipt is enclosed.",), ("I did not keep any receipt.",)
                ),
                Fact(
                    "it concerns a group of ten or more", ("We are a group of fourteen.",), ("It concerns me alone.",)
                ),
            ),
            openings=("To the service centre.", "Passenger request follows."),
            closings=("Awaiting your word.", "Sent from the gate."),
        ),
        Domain(
            desk="municipal utility",
            topics=(
                Topic(
                    "water leaks",
                    ("A puddle is spreading from under the pavement.", "The cellar pipe drips day and night."),
                ),
                Topic("power cuts", ("Our whole street went dark.", "The lights fail each evening at nine.")),
                Topic(
                    "meters", ("The dial behind the glass stands still.", "The digits of my counter jump backwards.")
                ),
                Topic(
                    "street lamps", ("The lantern at our corner flickers.", "The lamp post at the crossing is bent.")
                ),
                Topic("tariffs", ("Which price per unit do I pay from spring on?", "Is there a cheaper night rate?")),
                Topic("refuse collection", ("Nobody emptied the grey bin.", "The glass container overflows.")),
            ),
            queues=("pipe crew", "grid control", "metering", "lighting", "rates bureau", "depot"),
            actions=(
                "inspect on site",
                "shut off the line",
                "mail the price list",
                "schedule next week",
                "bill the owner",
                "warn the neighbours",
            ),
            facts=(
                Fact(
                    "a school or clinic is affected",
                    ("The clinic next door is hit as well.",),
                    ("Neither schools nor clinics are nearby.",),
                ),
                Fact("the caller owns the building", ("The house is mine.",), ("I am merely a tenant.",)),
                Fact("it lasts longer than two days", ("It has been so for five days.",), ("It began an hour ago.",)),
                Fact(
                    "somebody might get hurt",
                    ("Somebody could trip or burn themselves.",),
                    ("Nobody is in danger from it.",),
                ),
                Fact(
                    "the account is in arrears",
                    ("I admit that two of my bills are open.",),
                    ("All my bills are settled.",),
                ),
                Fact(
                    "it happened in the old town", ("We are in the old town.",), ("We are out in the northern suburb.",)
                ),
                Fact(
                    "a neighbour reported it as well",
                    ("The family upstairs has called you, too.",),
                    ("Nobody else seems to have called.",),
                ),
            ),
            openings=("Citizen's notice:", "For the duty officer."),
            closings=("That is all.", "Over to you."),
        ),
    ),
    priorities=(("routine", "elevated", "critical"), ("green", "amber", "red"), ("can wait", "today", "at once")),
    sheet={
        "title": "{desk}: standing orders",
        "queues": "1. Where a case goes, by its subject",
        "queue": "   {topic} -> {queue}",
        "exception": "   But a case goes to {queue} regardless of its subject whenever {clause}.",
        "priorities": "2. How urgent it is",
        "actions": "3. What is done first",
        "rule": "   * {value}, provided that {clause}",
        "otherwise": "   * {value}, provided that no other line applies",
        "first": "Under 2 and 3, an upper line beats the lines below it.",
        "last": "Under 2 and 3, a lower line beats the lines above it, apart from the closing line of each.",
        "override": "Whatever 3 says, a case that is '{priority}' under 2 gets '{action}'.",
    },
    exception_share=0.7,
    last_share=0.5,
    override_share=0.4,
    frames=(
        "{sheet}\n\nCase:\n{ticket}\n\nName destination, urgency and first step as queue | priority | action. {format}",
        "Incoming case: {ticket}\n\nDecide it by these orders.\n\n{sheet}\n\nThe result has the form queue | "
        "priority | action. {format}",
    ),
)
