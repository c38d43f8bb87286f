"""What can be said about `environment.py` without running it: syntax, imports, names, the taskset and its rewards.

These checks save a sandbox and give better messages than a traceback. They are no protection: job code is untrusted
whatever they say, and only the sandbox confines it.

The names of verifiers are those that versions 0.3.1 and 0.4.0 share (module `verifiers.v1`), as far as a single-turn
taskset needs them; V0_NAMES are the ones of the removed API that language models remember.
"""

from __future__ import annotations

import ast
import difflib
import warnings
from collections.abc import Iterator

from trainwright.errors import JobRejected
from trainwright.job.answer import DATASET, ENVIRONMENT

ALLOWED_MODULES = frozenset(
    (  # noqa: SIM905
        "__future__ abc ast base64 bisect calendar cmath collections collections.abc copy csv dataclasses datetime "
        "decimal difflib enum fractions functools hashlib heapq itertools json math numbers operator pathlib pydantic "
        "random re statistics string textwrap types typing typing_extensions unicodedata verifiers.v1"
    ).split()
)

VERIFIERS_NAMES = frozenset(
    (  # noqa: SIM905
        "AssistantMessage Message Messages State StateT SystemMessage Task TaskConfig TaskData Taskset TasksetConfig "
        "Trace UserMessage extract_boxed_answer metric reward stop verify_boxed_math_answer"
    ).split()
)

_TASKSET = (
    "`class Problems(vf.Taskset[Problem, vf.TasksetConfig]):` with `def load(self):` that yields "
    '`Problem(Data(idx=0, prompt="...", answer="..."), self.config.task)` for each row'
)
_REWARD = "an `async def` method of the vf.Task, decorated with @vf.reward"
_PARSE = "plain Python on trace.last_reply inside the reward"
V0_NAMES = {
    name: instead
    for names, instead in (
        ("verifiers", "`import verifiers.v1 as vf`"),
        ("Environment SingleTurnEnv MultiTurnEnv ToolEnv StatefulToolEnv SandboxEnv PythonEnv EnvGroup", _TASKSET),
        (
            "Rubric RubricGroup JudgeRubric ToolRubric MathRubric RewardFunc",
            "`@vf.reward(weight=1.0)` on `async def correct(self, trace: vf.Trace) -> float:`, methods of `class "
            "Problem(vf.Task[Data]):`, which compare trace.last_reply with self.data.answer; before it "
            "`class Data(vf.TaskData):` with `answer: str`",
        ),
        ("load_environment", '`__all__ = ["Problems"]` with the name of the taskset, at the top level'),
        ("Parser XMLParser ThinkParser MaybeThinkParser", _PARSE),
        ("datasets load_example_dataset", "rows made in load()"),
        (
            "GRPOTrainer GRPOConfig RLTrainer RLConfig grpo_defaults lora_defaults get_model_and_tokenizer",
            "the hyperparameters in train.toml: the engine trains",
        ),
    )
    for name in names.split()
}
"""Names of verifiers before 0.4, and of what its environments imported, each with what to write in its place."""

V0_ARGUMENTS = {
    "completion": "trace.last_reply",
    "response": "trace.last_reply",
    "prompt": "self.data.prompt",
    "answer": "self.data.answer",
    "info": "a field of self.data",
    "state": "a field of self.data",
    "parser": _PARSE,
    "runtime": "nothing: no runtime exists here",
}

FORBIDDEN_NAMES = frozenset(
    {"__builtins__", "__import__", "__loader__", "breakpoint", "compile", "eval", "exec", "exit", "input", "quit"}
)
FORBIDDEN_ATTRIBUTES = frozenset({"__builtins__", "__code__", "__globals__", "__loader__", "__subclasses__"})

_SYSTEM_HINT = f"a job has no system access; read {DATASET} with pathlib.Path(__file__).with_name('{DATASET}')"
_TRAINING_HINT = "a job only defines rows and rewards; the engine trains"
_IMPORT_HINTS = {
    **dict.fromkeys(("os", "sys", "io", "shutil", "glob", "tempfile", "subprocess", "socket"), _SYSTEM_HINT),
    **dict.fromkeys(("torch", "transformers", "trl", "peft", "vllm", "accelerate"), _TRAINING_HINT),
    "datasets": f"yield rows in load(), or write them to {DATASET}",
    "numpy": "use random, math and statistics",
}


def check_source(source: str, *, has_dataset: bool) -> None:
    """Raise `JobRejected` for the first thing that is wrong with `environment.py`.

    Codes, in order: syntax, verifiers_v0, import, verifiers_name, name, no_all, no_taskset, all_names, load,
    no_reward, reward_not_coroutine, reward_arguments, dataset_missing.
    """
    tree = _parse(source)
    verifiers = _Verifiers(tree)
    _check_v0(tree, verifiers)
    _check_imports(tree)
    _check_names(tree, verifiers)
    _check_taskset(tree, verifiers)
    _check_rewards(tree, verifiers)
    _check_dataset(tree, has_dataset)


class _Verifiers:
    """Resolves expressions of one module to names of verifiers: `vf.Task[Data]` to `Task`."""

    def __init__(self, tree: ast.Module) -> None:
        self._modules = {"verifiers.v1"}
        self._imported: dict[str, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for item in node.names:
                    if item.asname and item.name in ("verifiers", "verifiers.v1"):
                        self._modules.add(item.asname)
            elif isinstance(node, ast.ImportFrom) and node.module in ("verifiers", "verifiers.v1"):
                self._imported |= {item.asname or item.name: item.name for item in node.names}

    def name(self, node: ast.expr) -> str:
        """Return the verifiers name an expression refers to, or ''. Calls and subscripts count as their callee."""
        while isinstance(node, ast.Call | ast.Subscript):
            node = node.func if isinstance(node, ast.Call) else node.value
        if isinstance(node, ast.Name):
            return self._imported.get(node.id, "")
        if isinstance(node, ast.Attribute) and _dotted(node.value) in self._modules:
            return node.attr
        return ""


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    return ""


def _reject(code: str, message: str, node: ast.AST | None = None) -> JobRejected:
    return JobRejected(code, message, ENVIRONMENT, getattr(node, "lineno", 0))


def _parse(source: str) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source, ENVIRONMENT)
            compile(tree, ENVIRONMENT, "exec", dont_inherit=True)  # finds `return` outside a function and the like
    except SyntaxError as error:
        message = f"Python can't read this: {error.msg.rstrip('.?')}."
        raise JobRejected("syntax", message, ENVIRONMENT, error.lineno or 0) from None
    except (ValueError, RecursionError, MemoryError):
        raise _reject("syntax", "An expression is nested too deep; write it as several statements.") from None
    return tree


def _check_v0(tree: ast.Module, verifiers: _Verifiers) -> None:
    """Name every leftover of the old API at once, so that one retry can repair them all."""
    found: dict[str, ast.AST] = {}
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [module for item in node.names for module in _v0_module(item.name)]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = _v0_module(node.module)
            if node.module.partition(".")[0] == "verifiers":
                names += [item.name for item in node.names if item.name in V0_NAMES]
        elif isinstance(node, ast.Attribute):
            names = [name for name in [verifiers.name(node)] if name in V0_NAMES]
        elif isinstance(node, ast.FunctionDef) and node.name == "load_environment":
            names = [node.name]
        for name in names:
            found.setdefault(name, node)
    if not found.keys() - {"datasets"}:
        return
    repairs: dict[str, list[str]] = {}
    for name in found:
        repairs.setdefault(V0_NAMES[name], []).append(name)
    written = "; ".join(f"for {', '.join(names)} write {instead}" for instead, names in repairs.items())
    first = min(found.values(), key=lambda node: getattr(node, "lineno", 0))
    raise _reject("verifiers_v0", f"This is the removed v0 API of verifiers; {written}.", first)


def _v0_module(name: str) -> list[str]:
    """Return the key in `V0_NAMES` of a module that belongs to the old API."""
    top = name.partition(".")[0]
    old = top == "datasets" or (top == "verifiers" and not f"{name}.".startswith("verifiers.v1."))
    return [top] if old else []


def _check_imports(tree: ast.Module) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [item.name for item in node.names]
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                raise _reject("import", "A relative import finds nothing; a job's code is one module.", node)
            modules = [node.module or ""]
        else:
            continue
        for module in modules:
            if module not in ALLOWED_MODULES:
                hint = _IMPORT_HINTS.get(module.partition(".")[0])
                hint = hint or f"import only {', '.join(sorted(ALLOWED_MODULES))}"
                raise _reject("import", f"Import of {module} is not allowed; {hint}.", node)


def _check_names(tree: ast.Module, verifiers: _Verifiers) -> None:
    forbidden = FORBIDDEN_NAMES - _bound(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in forbidden:
            raise _reject("name", f"{node.id} is not allowed; compute the value in plain Python.", node)
        if isinstance(node, ast.Attribute) and node.attr in FORBIDDEN_ATTRIBUTES:
            raise _reject("name", f"{node.attr} is not allowed; compute the value in plain Python.", node)
        used: list[str] = []
        if isinstance(node, ast.Attribute):
            used = [verifiers.name(node)]
        elif isinstance(node, ast.ImportFrom) and node.module == "verifiers.v1":
            used = [item.name for item in node.names]
        for name in used:
            if name and name not in VERIFIERS_NAMES:
                close = difflib.get_close_matches(name, VERIFIERS_NAMES, n=1)
                hint = f"did you mean vf.{close[0]}?" if close else f"use only {', '.join(sorted(VERIFIERS_NAMES))}."
                raise _reject("verifiers_name", f"vf.{name} is not part of a job's verifiers API; {hint}", node)


def _bound(tree: ast.Module) -> set[str]:
    """Return the names that the module gives a meaning of its own, such as an argument named `input`."""
    stored = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return stored | {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}


def _check_taskset(tree: ast.Module, verifiers: _Verifiers) -> None:
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    tasksets = [name for name in classes if _derives(name, "Taskset", classes, verifiers)]
    example = f'write `__all__ = ["{tasksets[-1] if tasksets else "MyTaskset"}"]`'
    exports = _exports(tree)
    if exports is None:
        raise _reject("no_all", f"environment.py has no __all__; {example}.")
    if not tasksets:
        raise _reject("no_taskset", f"No class derives from vf.Taskset; write {_TASKSET}.")
    names = _strings(exports)
    if names is None:
        raise _reject("all_names", f"__all__ must be a plain list of names; {example}.", exports)
    exported = [name for name in names if name in tasksets]
    missing = [name for name in names if name not in classes]
    if len(exported) != 1 or missing:
        what = f"{missing[0]!r}, which is no class here" if missing else f"{len(exported)} tasksets"
        raise _reject("all_names", f"__all__ names {what}; it must name exactly one taskset: {example}.", exports)
    load = _method(exported[0], "load", classes)
    if not isinstance(load, ast.FunctionDef):
        what = "is a coroutine" if load else "is missing"
        message = f"{exported[0]}.load {what}; write `def load(self)` that returns or yields vf.Task objects."
        raise _reject("load", message, load or classes[exported[0]])


def _check_rewards(tree: ast.Module, verifiers: _Verifiers) -> None:
    methods = [
        (decorator, method)
        for owner in ast.walk(tree)
        if isinstance(owner, ast.ClassDef)
        for method in owner.body
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef)
        for decorator in map(verifiers.name, method.decorator_list)
        if decorator in ("reward", "metric", "stop")
    ]
    if not any(decorator == "reward" for decorator, _ in methods):
        raise _reject("no_reward", f"There is no reward; write one as {_REWARD}.")
    for decorator, method in methods:
        if isinstance(method, ast.FunctionDef):
            raise _reject(
                "reward_not_coroutine", f"@vf.{decorator} {method.name} must be `async def {method.name}`.", method
            )
        for name in _required(method):
            if decorator != "stop" and name not in ("trace", "task"):
                hint = f"; for {name} use {V0_ARGUMENTS[name]}" if name in V0_ARGUMENTS else ""
                message = f"{method.name} can't take {name!r}: its arguments are self and, if wanted, trace{hint}."
                raise _reject("reward_arguments", message, method)


def _check_dataset(tree: ast.Module, has_dataset: bool) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value == DATASET and not has_dataset:
            message = (
                f"{ENVIRONMENT} reads {DATASET}, which the job does not have; write it or yield the rows in load()."
            )
            raise _reject("dataset_missing", message, node)


def _derives(name: str, base: str, classes: dict[str, ast.ClassDef], verifiers: _Verifiers) -> bool:
    return any(verifiers.name(parent) == base for owner in _lineage(name, classes) for parent in classes[owner].bases)


def _method(name: str, wanted: str, classes: dict[str, ast.ClassDef]) -> ast.stmt | None:
    for owner in _lineage(name, classes):
        for node in classes[owner].body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == wanted:
                return node
    return None


def _lineage(name: str, classes: dict[str, ast.ClassDef]) -> Iterator[str]:
    """Yield a class of the module and those it derives from, each once."""
    waiting, seen = [name], set()
    while waiting:
        current = waiting.pop(0)
        if current in seen or current not in classes:
            continue
        seen.add(current)
        yield current
        for parent in classes[current].bases:
            while isinstance(parent, ast.Subscript):
                parent = parent.value
            if isinstance(parent, ast.Name):
                waiting.append(parent.id)


def _exports(tree: ast.Module) -> ast.expr | None:
    """Return the value that the module last assigns to `__all__`."""
    found: ast.expr | None = None
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            assert isinstance(node, ast.Assign | ast.AnnAssign)
            found = node.value or found
    return found


def _strings(node: ast.expr) -> list[str] | None:
    """Return the items of a literal list or tuple of strings, or None."""
    if not isinstance(node, ast.List | ast.Tuple):
        return None
    values = [item.value if isinstance(item, ast.Constant) else None for item in node.elts]
    strings = [value for value in values if isinstance(value, str)]
    return strings if len(strings) == len(values) else None


def _required(method: ast.AsyncFunctionDef) -> list[str]:
    """Return the arguments after `self` that have no default."""
    arguments = method.args
    positional = [*arguments.posonlyargs, *arguments.args]
    plain = positional[1 : len(positional) - len(arguments.defaults)]
    keyword = [
        item for item, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if default is None
    ]
    return [item.arg for item in (*plain, *keyword)]
