"""`qwen-countdown`: reach a target from given numbers with the four operations, each number used exactly once."""

from __future__ import annotations

import ast
import json
import random
import re
from dataclasses import dataclass
from fractions import Fraction

from trainwright.suites.family import Item
from trainwright.suites.qwen.answers import REPLY_FORMAT
from trainwright.suites.qwen.base import Parameters, QwenFamily

NAMES = {"+": "+ (add)", "-": "- (subtract)", "*": "* (multiply)", "/": "/ (divide)"}
OPERATORS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
MAX_EXPRESSION = 80
"""Characters; keeps Python's parser away from absurd nesting."""


@dataclass(frozen=True)
class World:
    """How items look.

    At least one number is above `above`. `four_share` of the items have four numbers instead of three, and
    `product_share` were made with a multiplication or division.
    """

    numbers: tuple[int, int]
    above: int
    targets: tuple[int, int]
    four_share: float
    product_share: float
    frames: tuple[str, ...]


WORLD = World(
    numbers=(1, 50),
    above=0,
    targets=(5, 120),
    four_share=0.0,
    product_share=0.6,
    frames=(
        "Numbers: {numbers}\nTarget: {target}\nUse every number exactly once, with {operators} and parentheses, to "
        "make the target. {format}",
        "Make {target} from {numbers}. Each number must be used once and only once; you may use {operators} and "
        "parentheses. {format}",
    ),
)


def evaluate(expression: str, operators: str) -> tuple[list[int], Fraction] | None:
    """Return the numbers an expression uses, in order, and its exact value; None when it is not a plain expression.

    Only whole numbers without sign, the operators given, and parentheses count. The text is parsed to a syntax tree
    and the tree is computed here: nothing of it ever runs.
    """
    if len(expression) > MAX_EXPRESSION or not re.fullmatch(r"[0-9+\-*/() ]+", expression):
        return None
    numbers: list[int] = []

    def value(node: ast.expr) -> Fraction:
        match node:
            case ast.Constant(value=int(number)):
                numbers.append(number)
                return Fraction(number)
            case ast.BinOp(left=left, op=operator, right=right) if OPERATORS.get(type(operator), "none") in operators:
                a, b = value(left), value(right)
                match operator:
                    case ast.Add():
                        return a + b
                    case ast.Sub():
                        return a - b
                    case ast.Mult():
                        return a * b
                    case _:
                        return a / b
        raise ValueError("not a plain expression")

    try:
        result = value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError):
        return None
    return numbers, result


def partial_credit(answer: str, reply: str) -> float:
    """Return 0.1 for one answer block, 0.2 for plain arithmetic in it, 0.4 when that uses exactly the given numbers.

    Whether it reaches the target is left to the reward.
    """
    import json
    import re

    if reply.count("<answer>") != 1 or reply.count("</answer>") != 1:
        return 0.0
    given = reply.partition("<answer>")[2].partition("</answer>")[0].strip()
    if not re.fullmatch(r"[0-9+\-*/() ]+", given):
        return 0.1
    used = sorted(int(digits) for digits in re.findall(r"[0-9]{1,9}", given))
    return 0.4 if used == sorted(json.loads(answer)["numbers"]) else 0.2


class Countdown(QwenFamily[World]):
    """Reach the target; tasks differ in the operators allowed. An item's answer is JSON with one solution in it."""

    name = "qwen-countdown"
    variants = ({"operators": "+-*"}, {"operators": "+-*/"})
    visible_examples = 1
    max_completion_tokens = 192
    form = (
        "It holds one arithmetic expression of whole numbers, operators and parentheses, without an equals sign. An "
        "example's answer lists target, numbers, operators and one of the right expressions; any other that uses each "
        "number exactly once and has exactly the target's value is right as well."
    )
    difference = (
        "numbers up to 99 with at least one above 50, larger targets, one item in five with four numbers, and other "
        "wordings."
    )
    partial_credit = staticmethod(partial_credit)
    world = WORLD

    def instruction(self, parameters: Parameters) -> str:
        operators = list_operators(str(parameters["operators"]))
        return (
            f"Combine three given numbers (sometimes four), each used exactly once, by {operators} so that they make a "
            "target."
        )

    def item(self, parameters: Parameters, world: World, rng: random.Random) -> Item:
        operators = str(parameters["operators"])
        count = 4 if rng.random() < world.four_share else 3
        product = rng.random() < world.product_share
        while True:
            numbers = rng.sample(range(world.numbers[0], world.numbers[1] + 1), count)
            target, solution = combine(numbers, operators, rng) or (0, "")
            trivial = (
                target in numbers or target == sum(numbers) or product == ("*" not in solution and "/" not in solution)
            )
            if not trivial and max(numbers) > world.above and world.targets[0] <= target <= world.targets[1]:
                break
        prompt = rng.choice(world.frames).format(
            numbers=", ".join(map(str, numbers)),
            target=target,
            operators=list_operators(operators),
            format=REPLY_FORMAT,
        )
        answer = {"target": target, "numbers": numbers, "operators": operators, "solution": solution}
        return Item(prompt, json.dumps(answer))

    def right(self, item: Item, block: str) -> bool:
        wanted = json.loads(item.answer)
        found = evaluate(block, wanted["operators"])
        return found is not None and sorted(found[0]) == sorted(wanted["numbers"]) and found[1] == wanted["target"]

    def gold(self, item: Item) -> str:
        return str(json.loads(item.answer)["solution"])


def list_operators(operators: str) -> str:
    """Return `+ (add), - (subtract) and * (multiply)` for `+-*`."""
    *first, last = (NAMES[operator] for operator in operators)
    return f"{', '.join(first)} and {last}"


def combine(numbers: list[int], operators: str, rng: random.Random) -> tuple[int, str] | None:
    """Return a value and an expression over all the numbers, or None when the draw met a step that is no puzzle.

    Steps keep to positive whole numbers up to 999 and never multiply or divide by one.
    """
    pool = [(number, str(number)) for number in numbers]
    while len(pool) > 1:
        (a, left), (b, right) = (pool.pop(rng.randrange(len(pool))) for _ in range(2))
        operator = rng.choice(operators)
        if (operator in "*/" and 1 in (a, b)) or (operator == "/" and a % b):
            return None
        value = {"+": a + b, "-": a - b, "*": a * b, "/": a // b}[operator]
        if not 0 < value <= 999:
            return None
        pool.append((value, f"({left} {operator} {right})"))
    value, expression = pool[0]
    return value, expression[1:-1]
