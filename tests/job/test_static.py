from __future__ import annotations

import ast
import importlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.errors import JobRejected
from trainwright.job.job import ENVIRONMENT, Job
from trainwright.job.static import ALLOWED_MODULES, V0_NAMES, VERIFIERS_NAMES, check_source


@pytest.fixture
def source(job: Job) -> str:
    return job.files[ENVIRONMENT]


def rejection(source: str) -> JobRejected:
    with pytest.raises(JobRejected) as caught:
        check_source(source, has_dataset=False)
    assert caught.value.file == ENVIRONMENT
    return caught.value


def swapped(source: str, old: str, new: str) -> str:
    assert source.count(old) == 1, old
    return source.replace(old, new)


def line_of(source: str, text: str) -> int:
    return source[: source.index(text)].count("\n") + 1


def test_accepts_the_documented_job(source: str) -> None:
    check_source(source, has_dataset=False)


@pytest.mark.parametrize(
    "change",
    [
        ("import verifiers.v1 as vf", "import verifiers.v1 as vf\nfrom verifiers.v1 import Task, reward"),
        ('__all__ = ["Problems"]', '__all__: list[str] = ["Problem", "Problems"]'),
        ('__all__ = ["Problems"]', '__all__ = ("Problems",)'),
        ("import random", "import random, json, collections.abc\nfrom pathlib import Path"),
        ("(vf.Taskset[Problem, vf.TasksetConfig])", "(vf.Taskset)"),
        ("correct(self, trace: vf.Trace)", "correct(self)"),
        ("correct(self, trace: vf.Trace)", "correct(self, trace, task, scale=1, *, power=2)"),
        ("import random", "import random\nfor input, exit in [(1, 2)]:\n    print(input, exit)"),
        ("import random", 'import random\nBACKSLASH = "\\d"'),
    ],
)
def test_accepts_variants(source: str, change: tuple[str, str]) -> None:
    check_source(swapped(source, *change), has_dataset=False)


def test_accepts_names_imported_from_verifiers_and_inheritance() -> None:
    source = """\
from verifiers.v1 import Task, TaskData, Taskset, TasksetConfig, Trace, reward
class Scored(Task[TaskData]):
    @reward(weight=0.5)
    async def short(self, trace: Trace) -> float:
        return 1 / (1 + len(trace.last_reply))
class Base(Taskset[Scored, TasksetConfig]):
    def load(self):
        return [Scored(TaskData(idx=i, prompt=str(i)), self.config.task) for i in range(9)]
class Rows(Base):
    pass
__all__ = ["Rows"]
"""
    check_source(source, has_dataset=False)


@pytest.mark.parametrize("statement", ["import torch", "import os", "from os import system", "import subprocess, json",
                                       "import importlib", "import socket", "import verifiers.v1.runtimes",
                                       "from .environment import x", "from datasets import Dataset"])  # fmt: skip
@pytest.mark.parametrize("indent", ["", "    def helper(self):\n        "])
def test_imports(source: str, statement: str, indent: str) -> None:
    old = "import random\n" if not indent else "    def load(self):\n"
    changed = source.replace(old, f"{indent}{statement}\n{old}")
    found = rejection(changed)
    assert (found.code, found.line) == ("import", line_of(changed, statement))


def test_an_import_says_what_to_do_instead(source: str) -> None:
    assert "the engine trains" in rejection("import torch\n" + source).message
    assert "with_name('dataset.jsonl')" in rejection("import os\n" + source).message
    assert "import only __future__" in rejection("import requests\n" + source).message


V0 = """\
import verifiers as vf
from datasets import Dataset

def load_environment(**kwargs):
    parser = vf.ThinkParser()
    rubric = vf.Rubric(funcs=[lambda completion, answer: 1.0])
    return vf.SingleTurnEnv(dataset=Dataset.from_list([]), rubric=rubric, parser=parser)
"""


def test_the_old_verifiers_api_is_translated_in_one_message() -> None:
    found = rejection(V0)
    assert (found.code, found.line) == ("verifiers_v0", 1)
    assert "for verifiers write `import verifiers.v1 as vf`" in found.message
    assert "for datasets write rows made in load()" in found.message  # it would be the next refusal
    for name in ("load_environment", "ThinkParser", "Rubric", "SingleTurnEnv"):
        assert f"for {name} write {V0_NAMES[name]}" in found.message


def test_what_it_says_to_write_passes_the_gate() -> None:
    """A model that copies the repairs word for word has a job."""
    written = {name: re.findall(r"`([^`]+)`", V0_NAMES[name]) for name in V0_NAMES}
    (head,) = written["verifiers"]
    taskset, load, row = written["SingleTurnEnv"]
    decorator, method, task, data, field = written["Rubric"]
    (exports,) = written["load_environment"]
    check_source(
        f"{head}\n\n{data}\n    {field}\n\n{task}\n    {decorator}\n    {method}\n"
        f"        return float(trace.last_reply == self.data.answer)\n\n{taskset}\n    {load}\n"
        f"        for idx in range(9):\n            yield {row}\n\n{exports}\n",
        has_dataset=False,
    )


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("import verifiers as vf", ["verifiers"]),
        ("import verifiers", ["verifiers"]),
        ("from verifiers import Rubric, SingleTurnEnv", ["verifiers", "Rubric", "SingleTurnEnv"]),
        ("from verifiers.rubrics.rubric import Rubric", ["verifiers", "Rubric"]),
        ("from verifiers.parsers import XMLParser", ["verifiers", "XMLParser"]),
        ("import verifiers.envs.singleturn_env as env", ["verifiers"]),
        ("from verifiers.types import Messages", ["verifiers"]),
        ("from verifiers import GRPOTrainer", ["verifiers", "GRPOTrainer"]),
    ],
)
def test_every_way_to_import_the_old_api_is_named(source: str, line: str, names: list[str]) -> None:
    found = rejection(f"{line}\n{source}")
    assert (found.code, found.line) == ("verifiers_v0", 1)
    for name in names:
        assert f"for {name} write {V0_NAMES[name]}" in found.message


def test_datasets_alone_is_an_import_that_is_not_allowed(source: str) -> None:
    assert rejection(f"from datasets import Dataset\n{source}").code == "import"


@pytest.mark.parametrize("name", ["SingleTurnEnv", "Rubric", "Environment", "Parser"])
def test_each_old_name_is_found_however_it_is_reached(source: str, name: str) -> None:
    for code in (f"vf.{name}()", f"from verifiers import {name}", f"from verifiers.v1 import {name}"):
        found = rejection(f"{source}{code}\n")
        assert (found.code, found.line) == ("verifiers_v0", source.count("\n") + 1)
        assert f"for {name} write {V0_NAMES[name]}" in found.message


@pytest.mark.parametrize(
    ("old", "new", "code", "at", "says"),
    [
        ("vf.TaskData", "vf.TaskDatum", "verifiers_name", "vf.TaskDatum", "did you mean vf.TaskData?"),
        ("import random", "from verifiers.v1 import *", "verifiers_name", "from verifiers.v1", "vf.*"),
        ("import random", "import random\nx = eval('1')", "name", "x = eval", "eval"),
        ("import random", "import random\n__import__('os').system('ls')", "name", "__import__", "__import__"),
        ("import random", "import random\nx = random.seed.__globals__", "name", "x = random", "__globals__"),
        ("import random", "import random\nreturn 1", "syntax", "return 1", "outside function"),
        ("yield Problem", "return 1 yield Problem", "syntax", "return 1 yield", "can't read"),
        ('__all__ = ["Problems"]', "", "no_all", "", '__all__ = ["Problems"]'),
        ("class Problems(vf.Taskset[Problem, vf.TasksetConfig])", "class Problems", "no_taskset", "", "vf.Taskset"),
        ('["Problems"]', "list(globals())", "all_names", "__all__", "plain list"),
        ('["Problems"]', '["Problem"]', "all_names", "__all__", "0 tasksets"),
        ('["Problems"]', '["Problems", "Nothing"]', "all_names", "__all__", "'Nothing'"),
        ('["Problems"]', '["Problems", "B"]\nclass B(Problems): ...', "all_names", "__all__", "2 tasksets"),
        ("def load(self)", "def rows(self)", "load", "class Problems", "Problems.load is missing"),
        ("def load(self)", "async def load(self)", "load", "async def load", "is a coroutine"),
        ("async def correct", "def correct", "reward_not_coroutine", "def correct", "async def correct"),
        ("import random", "import random\nX = 'dataset.jsonl'", "dataset_missing", "X =", "dataset.jsonl"),
    ],
)  # fmt: skip
def test_names_what_is_wrong_and_where(source: str, old: str, new: str, code: str, at: str, says: str) -> None:
    changed = swapped(source, old, new)
    found = rejection(changed)
    assert (found.code, found.line) == (code, line_of(changed, at) if at else 0)
    assert says in found.message


def test_without_a_reward(source: str) -> None:
    changed = re.sub(r" +@vf\.reward.*\n", "", source)
    assert rejection(changed).code == "no_reward"
    outside = changed + "@vf.reward\nasync def correct(trace):\n    return 1.0\n"
    assert rejection(outside).code == "no_reward"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("self, completion, trace", "for completion use trace.last_reply"),
        ("self, *, answer", "for answer use self.data.answer"),
        ("self, runtime", "no runtime exists"),
        ("self, words", "can't take 'words'"),
    ],
)
def test_reward_arguments_that_nobody_passes(source: str, arguments: str, says: str) -> None:
    changed = swapped(source, "correct(self, trace: vf.Trace)", f"correct({arguments})")
    found = rejection(changed)
    assert (found.code, found.line) == ("reward_arguments", line_of(changed, "async def correct"))
    assert says in found.message


def test_metrics_must_be_coroutines_too(source: str) -> None:
    changed = source.replace(
        "    @vf.reward\n", "    @vf.metric\n    def size(self):\n        return 1\n\n    @vf.reward\n"
    )
    assert rejection(changed).code == "reward_not_coroutine"


def test_a_dataset_that_exists_may_be_read(source: str) -> None:
    check_source(swapped(source, "import random", "import random\nX = 'dataset.jsonl'"), has_dataset=True)


@pytest.mark.parametrize(
    "expression", ["-" * 100_000 + "1", "a" + ".b" * 50_000, "x" + "()" * 50_000, "1" + "+1" * 50_000, "(" * 300,
                   "9" * 5000, "not " * 30_000 + "1", "1 " + "if 1 else 1 " * 9000]
)  # fmt: skip
def test_hostile_nesting_is_a_syntax_error(expression: str) -> None:
    assert rejection(f"x = {expression}\n").code == "syntax"


@given(st.data())
def test_any_source_passes_or_is_rejected(data: st.DataObject) -> None:
    lines = data.draw(st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=20), max_size=12))
    try:
        check_source("\n".join(lines), has_dataset=data.draw(st.booleans()))
    except JobRejected as rejected:
        place = rejected.file
    else:
        place = ENVIRONMENT
    assert place == ENVIRONMENT


FRAGMENTS = [
    "import verifiers.v1 as vf",
    "import verifiers.v1",
    "from verifiers.v1 import *",
    "from . import x",
    "from __future__ import annotations",
    "class A(vf.Task[int]):",
    "class B(B, vf.Taskset[A]):",
    "class B(*x, metaclass=y):",
    "    @vf.reward",
    "    @vf.reward()()",
    "    async def r(): ...",
    "    async def r(self, /, *a, b, **c): ...",
    "    def load(self): ...",
    "    load = 1",
    "__all__ = ['A', 'B']",
    "__all__ = [*x, 1]",
    "__all__: int",
    "__all__ = x = ()",
    "a, __all__ = 1, 2",
]


def test_every_name_it_allows_exists() -> None:
    verifiers = importlib.import_module("verifiers.v1")
    assert set(dir(verifiers)) >= VERIFIERS_NAMES
    assert set(V0_NAMES) & set(dir(verifiers)) == {"load_environment"}
    for module in ALLOWED_MODULES:
        importlib.import_module(module)


def test_module_names_are_ast_names() -> None:
    """The lists are written as one string each; a missing space would join two names."""
    for name in ALLOWED_MODULES | VERIFIERS_NAMES:
        assert isinstance(ast.parse(name).body[0], ast.Expr)
