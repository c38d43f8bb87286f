# mypy: disable-error-code="misc, untyped-decorator"
import ast
import json
import random
from collections.abc import Iterator
from fractions import Fraction

import verifiers.v1 as vf

from trainwright.suites.qwen.countdown import partial_credit

PARAMETERS = {"operators": "+-*/"}

SIGNS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
FRAMES = (
    "Combine the numbers {numbers} to reach {target}. Allowed: {operators} and parentheses. Use every number "
    "once.\n{format}",
    "Given {numbers}, find an expression that equals {target}. Use each number exactly one time and only "
    "{operators}.\n{format}",
    "Target {target}, numbers {numbers}, operators {operators}, every number exactly once.\n{format}",
)
FORMAT = "Write the final result between <answer> and </answer>."


def draw_problem(rng: random.Random) -> tuple[str, str] | None:
    operators = PARAMETERS["operators"]
    numbers = [rng.randint(1, 99) for _ in range(4 if rng.random() < 0.2 else 3)]
    pool = list(numbers)
    while len(pool) > 1:
        a, b = (pool.pop(rng.randrange(len(pool))) for _ in range(2))
        operator = rng.choice(operators)
        if operator == "/" and a % b:
            return None
        value = {"+": a + b, "-": a - b, "*": a * b, "/": a // b}[operator]
        if not 0 < value < 400:
            return None
        pool.append(value)
    fields = {
        "numbers": ", ".join(map(str, numbers)),
        "target": pool[0],
        "operators": " ".join(operators),
        "format": FORMAT,
    }
    return rng.choice(FRAMES).format(**fields), json.dumps({"target": pool[0], "numbers": numbers})


def value_of(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return Fraction(node.value)
    if isinstance(node, ast.BinOp) and SIGNS.get(type(node.op), "none") in PARAMETERS["operators"]:
        a, b = value_of(node.left), value_of(node.right)
        return {"+": a + b, "-": a - b, "*": a * b, "/": a / b if b else Fraction(-1)}[SIGNS[type(node.op)]]
    raise ValueError("not a plain expression")


def miss(answer: str, reply: str) -> float:
    """Return how far a well-formed expression is from the target, relative to it; 1 for anything else."""
    if partial_credit(answer, reply) < 0.4:
        return 1.0
    target = json.loads(answer)["target"]
    expression = reply.partition("<answer>")[2].partition("</answer>")[0].strip()
    try:
        return min(1.0, float(abs(value_of(ast.parse(expression, mode="eval").body) - target) / target))
    except (SyntaxError, ValueError):
        return 1.0


class Data(vf.TaskData):
    answer: str


class Problem(vf.Task[Data]):
    @vf.reward
    async def exact(self, trace: vf.Trace) -> float:
        return float(miss(self.data.answer, trace.last_reply) == 0)

    @vf.reward(weight=0.25)
    async def well_formed(self, trace: vf.Trace) -> float:
        return partial_credit(self.data.answer, trace.last_reply) / 0.4

    @vf.reward(weight=0.1)
    async def near(self, trace: vf.Trace) -> float:
        return 1.0 - miss(self.data.answer, trace.last_reply)


class Problems(vf.Taskset[Problem, vf.TasksetConfig]):
    def load(self) -> Iterator[Problem]:
        rng = random.Random(1)
        for idx in range(4000):
            problem = draw_problem(rng)
            while problem is None:
                problem = draw_problem(rng)
            prompt, answer = problem
            yield Problem(Data(idx=idx, prompt=prompt, answer=answer), self.config.task)


__all__ = ["Problems"]
