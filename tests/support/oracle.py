"""The right answer to any nano prompt, worked out from the prompt alone: it shares no code with the families."""

from __future__ import annotations

import re


def answer_to(prompt: str) -> str:
    """Return the right answer to a prompt of any of the six families."""
    verb, text = re.fullmatch(r"(\S+?)(?: |:)(.+)=", prompt).groups()  # type: ignore[union-attr]
    match verb[:3]:
        case "rev":
            return "".join(reversed(text))
        case "shf":
            letters = "abcdefghijklmnopqrstuvwxyz"
            return "".join(letters[(letters.index(letter) + int(verb[3:])) % 26] for letter in text)
        case "srt":
            return "".join(sorted(text)) if verb[3] == "<" else "".join(sorted(text))[::-1]
        case "unq":
            return "".join(letter for place, letter in enumerate(text) if letter not in text[:place])
        case "cnt":
            letter, word = text.split(":")
            return str(sum(one == letter for one in word))
        case "add":
            return str(sum(int(number) for number in text.split("+")))
    raise AssertionError(prompt)
