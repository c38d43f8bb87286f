"""`qwen-transform`: apply a rule, or two in turn, to a text: reverse, rotate, drop vowels and the like."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from string import ascii_lowercase

from trainwright.suites.family import Item
from trainwright.suites.qwen.answers import REPLY_FORMAT
from trainwright.suites.qwen.base import Parameters, QwenFamily, split_words

MEANING = {
    "reverse": "write the text backwards",
    "words": "write each word backwards, words staying in their places",
    "vowels": "leave out the vowels a, e, i, o, u",
    "rotate": "move the first k characters to the end",
    "pairs": "swap the 1st and 2nd character, the 3rd and 4th and so on (a last single one stays)",
    "skip": "keep the 1st, 3rd, 5th ... character",
}
SPACED = {"reverse", "words", "vowels"}
"""Rules that a text of several words survives without a space at either end."""


@dataclass(frozen=True)
class World:
    """How items look.

    A wording has `{count}` where its rule takes a number. A text has `lengths` characters; `letters_share` of its words
    are random letters.
    """

    words: tuple[str, ...]
    letters_share: float
    lengths: tuple[int, int]
    wordings: Mapping[str, tuple[str, ...]]
    pairs: tuple[tuple[str, str], ...]
    pair_share: float
    joints: tuple[str, ...]
    frames: tuple[str, ...]


WORLD = World(
    words=split_words(
        """apple basket bridge butter candle carpet cheese cloud coffee copper dinner doctor dragon engine family farmer
        finger flower forest garden ginger guitar hammer honey island jacket jungle kitchen ladder lemon letter market
        mirror monkey morning mountain number orange paper pencil pepper planet pocket potato rabbit river rocket
        school shadow silver spider spring summer table tiger tomato tunnel village water winter yellow zebra"""
    ),
    letters_share=0.1,
    lengths=(4, 12),
    wordings={
        "reverse": ("write the text backwards", "reverse the order of the characters"),
        "words": ("write every word backwards but leave the words in their places", "reverse each word on its own"),
        "vowels": ("remove the vowels (a, e, i, o, u)", "delete every vowel: a, e, i, o and u"),
        "rotate": (
            "move the first {count} characters to the end",
            "take {count} characters off the front and append them",
        ),
        "pairs": ("swap every two neighbouring characters: 1st with 2nd, 3rd with 4th and so on",),
        "skip": ("keep only the 1st, 3rd, 5th and so on character",),
    },
    pairs=(("reverse", "vowels"), ("words", "vowels"), ("reverse", "rotate"), ("pairs", "skip"), ("rotate", "skip")),
    pair_share=0.2,
    joints=("{first}, then {second}",),
    frames=("{Rule}.\nText: {text}\n{format}", "Here is a text: {text}\nYour task: {rule}.\n{format}"),
)


def apply(rule: str, text: str, count: int) -> str:
    """Return the text after one rule; `count` matters to `rotate` only."""
    match rule:
        case "reverse":
            return text[::-1]
        case "words":
            return " ".join(word[::-1] for word in text.split(" "))
        case "vowels":
            return "".join(character for character in text if character not in "aeiou")
        case "rotate":
            return text[count:] + text[:count]
        case "pairs":
            return "".join(text[start : start + 2][::-1] for start in range(0, len(text), 2))
        case "skip":
            return text[::2]
    raise ValueError(f"unknown rule {rule!r}")


def partial_credit(answer: str, reply: str) -> float:
    """Return 0.1 for one answer block and up to 0.9 for the share of characters in their places."""
    if reply.count("<answer>") != 1 or reply.count("</answer>") != 1:
        return 0.0
    given = reply.partition("<answer>")[2].partition("</answer>")[0].strip()
    same = sum(a == b for a, b in zip(answer, given, strict=False))
    return (1 + 9 * same / max(len(answer), len(given))) / 10


class Transform(QwenFamily[World]):
    """Apply one or two rules to a text; tasks differ in their rules."""

    name = "qwen-transform"
    variants = (
        {"rules": "reverse words vowels rotate"},
        {"rules": "reverse vowels pairs skip"},
        {"rules": "words rotate pairs skip"},
    )
    visible_examples = 8
    max_completion_tokens = 96
    form = "It holds the new text and nothing else."
    difference = (
        "texts of 10 to 24 characters, other words and more random letters, other wordings of the rules, and about a "
        "quarter of the items with two rules in an order that the examples do not show."
    )
    partial_credit = staticmethod(partial_credit)
    world = WORLD

    def instruction(self, parameters: Parameters) -> str:
        rules = "; ".join(f"{rule}: {MEANING[rule]}" for rule in str(parameters["rules"]).split())
        return f"Change a short lower-case text as one rule says, or two rules in turn. The rules are {rules}."

    def item(self, parameters: Parameters, world: World, rng: random.Random) -> Item | None:
        allowed = str(parameters["rules"]).split()
        pairs = [pair for pair in world.pairs if set(pair) <= set(allowed)]
        rules = rng.choice(pairs) if pairs and rng.random() < world.pair_share else (rng.choice(allowed),)
        text = draw_text(rules, world, rng)
        counts = [rng.randint(2, 4) for _ in rules]
        answer, wordings = text, []
        for rule, count in zip(rules, counts, strict=True):
            if rule == "rotate" and len(answer) <= count:
                return None
            answer = apply(rule, answer, count)
            wordings.append(rng.choice(world.wordings[rule]).format(count=count))
        if len(answer) < 2 or answer == text:
            return None
        rule = (
            rng.choice(world.joints).format(first=wordings[0], second=wordings[-1]) if len(rules) > 1 else wordings[0]
        )
        frame = rng.choice(world.frames)
        return Item(frame.format(rule=rule, Rule=rule[0].upper() + rule[1:], text=text, format=REPLY_FORMAT), answer)

    def right(self, item: Item, block: str) -> bool:
        return block == item.answer


def draw_text(rules: tuple[str, ...], world: World, rng: random.Random) -> str:
    """Return a text that suits the rules: words with spaces, words run together, or random letters."""
    shortest, longest = world.lengths
    if "words" in rules or (set(rules) <= SPACED and rng.random() < 0.5):
        separator, parts = " ", 2
    elif rng.random() < 0.5:
        separator, parts = "", 1
    else:
        return draw_letters(rng.randint(shortest, (shortest + longest) // 2), rng)
    while True:
        length = rng.randint(shortest, longest)
        words: list[str] = []
        while len(words) < parts or len(separator.join(words)) < length:
            letters = rng.random() < world.letters_share
            words.append(draw_letters(rng.randint(3, 8), rng) if letters else rng.choice(world.words))
        if len(separator.join(words)) <= longest:
            return separator.join(words)


def draw_letters(length: int, rng: random.Random) -> str:
    """Return random letters that begin with a consonant, so that a word without its vowels is still one."""
    return rng.choice("bcdfghjklmnpqrstvwxyz") + "".join(rng.choices(ascii_lowercase, k=length - 1))
