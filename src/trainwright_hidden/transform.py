"""Hidden world of `qwen-transform`: longer texts, other words and wordings, rule pairs in the other order."""

from __future__ import annotations

from trainwright.suites.qwen.base import split_words
from trainwright.suites.qwen.transform import World

WORLD = World(
    words=split_words(
        """anchor artist autumn ballad banner barley beacon blanket bronze bucket cabin canyon castle cavern circus
        cobalt comet compass cradle crystal curtain desert domino ember falcon feather fennel ferry fiddle fossil
        galaxy garnet gravel harbor harvest hazel helmet hollow hornet iceberg jasmine jigsaw kettle lagoon lantern
        lavender lumber magnet marble meadow mitten mosaic nectar nutmeg oyster paddle pebble pigeon pilgrim plaster
        quartz quiver radish raven ribbon saddle saffron sandal satchel scarlet shovel sparrow spindle stadium
        sycamore tavern thimble thunder timber tornado trumpet turnip velvet violin walnut willow wizard"""
    ),
    letters_share=0.4,
    lengths=(10, 24),
    wordings={
        "reverse": (
            "spell everything in the opposite direction, so that the final character comes first",
            "mirror the string from end to beginning",
            "read the string from right to left and note it down that way",
        ),
        "words": (
            "flip the letters inside each word; the sequence of words does not change",
            "mirror every single word where it stands",
            "within each word, put the letters in opposite order",
        ),
        "vowels": (
            "strip out all of a, e, i, o, u",
            "omit each a, e, i, o or u and close the gaps",
            "copy it with no vowels at all (vowels are a, e, i, o, u)",
        ),
        "rotate": (
            "cut off the leading {count} characters and glue them on behind",
            "rotate it {count} places to the left",
            "let the opening {count} characters come last instead",
        ),
        "pairs": (
            "cut it into twos from the left and turn each two around, leaving an odd last character alone",
            "exchange positions 1 and 2, positions 3 and 4, and so forth",
        ),
        "skip": (
            "throw away every second character, beginning with the second one",
            "copy positions 1, 3, 5, 7 and so forth, leaving out the others",
        ),
    },
    pairs=(
        ("vowels", "reverse"),
        ("vowels", "words"),
        ("words", "reverse"),
        ("rotate", "reverse"),
        ("skip", "pairs"),
        ("skip", "rotate"),
        ("pairs", "reverse"),
        ("skip", "vowels"),
    ),
    pair_share=0.25,
    joints=("{first}; with what you get, {second}", "do two things in turn: {first}; after that, {second}"),
    frames=(
        "String: {text}\nInstruction: {rule}.\n{format}",
        "Please {rule}.\n\n{text}\n\n{format}",
        "You are given the string below. You should {rule}.\n> {text}\n{format}",
    ),
)
