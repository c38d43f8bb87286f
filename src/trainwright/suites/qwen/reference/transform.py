# mypy: disable-error-code="misc, untyped-decorator"
import random
from collections.abc import Iterator

import verifiers.v1 as vf

from trainwright.suites.qwen.transform import partial_credit

PARAMETERS = {"rules": "reverse words vowels rotate pairs skip"}

LETTERS = "abcdefghijklmnopqrstuvwxyz"
FORMAT = "Write the final result between <answer> and </answer>."
FRAMES = (
    "{rule}\nText: {text}\n{format}",
    "{text}\n\nDo this with the text above. {rule}\n{format}",
    "Task: {rule}\nInput: {text}\n{format}",
)
RULES = {
    "reverse": ("Spell the text from its end to its start.", "Turn the whole text around, last character first."),
    "words": (
        "Spell each word from its end to its start and keep the order of the words.",
        "Turn around each single word.",
    ),
    "vowels": ("Drop a, e, i, o and u.", "Write the text without its vowels a, e, i, o, u."),
    "rotate": ("Put the first {count} characters behind the rest.", "Shift the text left by {count}, wrapping around."),
    "pairs": ("Exchange the characters two by two: first and second, third and fourth, and so on.",),
    "skip": ("Use only the characters at odd positions: first, third, fifth and so on.",),
}


def apply(rule: str, text: str, count: int) -> str:
    if rule == "reverse":
        return text[::-1]
    if rule == "words":
        return " ".join(word[::-1] for word in text.split(" "))
    if rule == "vowels":
        return "".join(c for c in text if c not in "aeiou")
    if rule == "rotate":
        return text[count:] + text[:count]
    if rule == "pairs":
        return "".join(text[i : i + 2][::-1] for i in range(0, len(text), 2))
    return text[::2]


def draw_word(rng: random.Random) -> str:
    return "".join(rng.choice("bcdfghklmnprstvw") + rng.choice("aeiou") for _ in range(rng.randint(1, 3))) + rng.choice(
        "nrst"
    )


def draw_problem(rng: random.Random) -> tuple[str, str]:
    allowed = PARAMETERS["rules"].split()
    rules = rng.sample(allowed, 2 if rng.random() < 0.25 else 1)
    if set(rules) <= {"reverse", "words", "vowels"} and ("words" in rules or rng.random() < 0.5):
        text = " ".join(draw_word(rng) for _ in range(rng.randint(2, 4)))
    else:
        rules = [rule for rule in rules if rule != "words"] or ["rotate" if "rotate" in allowed else "reverse"]
        text = (
            "".join(rng.choices(LETTERS, k=rng.randint(6, 18)))
            if rng.random() < 0.6
            else draw_word(rng) + draw_word(rng)
        )
    sentences, answer = [], text
    for rule in rules:
        count = rng.randint(1, 4)
        answer = apply(rule, answer, count)
        sentences.append(rng.choice(RULES[rule]).format(count=count))
    instruction = " Then, with the result: ".join(sentences)
    return rng.choice(FRAMES).format(rule=instruction, text=text, format=FORMAT), answer


class Data(vf.TaskData):
    answer: str


class Problem(vf.Task[Data]):
    @vf.reward(weight=0.7)
    async def exact(self, trace: vf.Trace) -> float:
        return float(partial_credit(self.data.answer, trace.last_reply) > 0.999)

    @vf.reward(weight=0.3)
    async def close(self, trace: vf.Trace) -> float:
        return partial_credit(self.data.answer, trace.last_reply)


class Problems(vf.Taskset[Problem, vf.TasksetConfig]):
    def load(self) -> Iterator[Problem]:
        rng = random.Random(1)
        for idx in range(4000):
            prompt, answer = draw_problem(rng)
            while len(answer) < 2:
                prompt, answer = draw_problem(rng)
            yield Problem(Data(idx=idx, prompt=prompt, answer=answer), self.config.task)


__all__ = ["Problems"]
