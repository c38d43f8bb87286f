"""What a job's taskset and rewards turn into, through the running server."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from trainwright.environment.client import EnvironmentServer, Limits
from trainwright.environment.environment import Row
from trainwright.errors import JobFault

WriteJob = Callable[..., dict[str, str]]


def fault_of(server: EnvironmentServer, files: dict[str, str], rows: int = 1, limits: Limits | None = None) -> JobFault:
    """Return the fault that a job ends with while it is opened, gives rows or scores."""
    try:
        with server.open(files, seed=1, limits=limits) as environment:
            environment.score([(row.index, "2") for row in environment.rows(rows)])
    except JobFault as fault:
        return fault
    pytest.fail("the job did not end with a fault")


def line_of(files: dict[str, str], text: str) -> int:
    lines = files["environment.py"].splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def test_rows_come_lazily_in_order_and_end(best_server: EnvironmentServer, job: WriteJob) -> None:
    with best_server.open(job(), seed=1) as environment:
        first, rest, none = environment.rows(3), environment.rows(1000), environment.rows(5)
    assert first[0] == Row(0, ({"role": "user", "content": "0"},), {"answer": "1"})
    assert [row.index for row in first + rest] == list(range(100))
    assert none == []


def test_rewards_are_right(best_server: EnvironmentServer, job: WriteJob) -> None:
    with best_server.open(job(), seed=1) as environment:
        environment.rows(3)
        rewards = environment.score([(2, "3"), (0, "3"), (0, " 1\n"), (1, "")])
        assert environment.score([]) == []
    assert [reward.total for reward in rewards] == [1.0, 0.0, 1.0, 0.0]
    assert [reward.parts for reward in rewards[:2]] == [{"correct": 1.0}, {"correct": 0.0}]
    assert all(0 < reward.seconds < 20 for reward in rewards)


def test_a_row_that_was_not_taken_can_not_be_scored(best_server: EnvironmentServer, job: WriteJob) -> None:
    with best_server.open(job(), seed=1) as environment:
        environment.rows(3)
        for index in (3, -1):
            with pytest.raises(IndexError):
                environment.score([(index, "")])
        assert environment.score([(2, "3")])[0].total == 1.0


def test_weights_dictionaries_and_metrics_mean_what_they_mean_in_verifiers(
    best_server: EnvironmentServer, job: WriteJob
) -> None:
    reward = """\
    return {"exact": 1.0, "length": 0.5}

@vf.reward(weight=0.2)
async def tidy(self) -> bool:
    return True

@vf.reward(weight=-1.0, priority=5)
async def turns(self, trace, task) -> int:
    return trace.num_turns + len(task.answer) - 1

@vf.metric
async def unweighted(self, trace) -> float:
    return 100.0
"""
    files = job(reward="PLACEHOLDER")
    body = "\n".join(f"    {line}" if line else "" for line in reward.splitlines())
    files["environment.py"] = files["environment.py"].replace("        PLACEHOLDER", body)
    with best_server.open(files, seed=1) as environment:
        environment.rows(1)
        [found] = environment.score([(0, "")])
    assert found.parts == {"exact": 1.0, "length": 0.5, "tidy": 0.2, "turns": -1.0}
    assert math.isclose(found.total, 0.7)


def test_rewards_of_every_make_get_what_they_ask_for_at_every_score(best_server: EnvironmentServer) -> None:
    files = {
        "environment.py": """\
import functools
import verifiers.v1 as vf

def halved(function):
    @functools.wraps(function)
    async def inner(self, *, task, trace):
        return 0.5 * await function(self, task=task, trace=trace)
    return inner

class Data(vf.TaskData):
    answer: str

class Base(vf.Task[Data]):
    @vf.reward
    async def mine(self, trace) -> float:
        return 100.0

    @vf.reward
    @halved
    async def wrapped(self, *, task, trace) -> float:
        return float(trace.last_reply == task.answer)

class Derived(Base):
    @vf.reward
    async def mine(self, trace) -> float:
        return float(self.data.answer)

class Both(vf.Taskset[Base, vf.TasksetConfig]):
    def load(self):
        yield Base(Data(prompt="a", answer="1"), self.config.task)
        yield Derived(Data(prompt="b", answer="2"), self.config.task)

__all__ = ["Both"]
"""
    }
    with best_server.open(files, seed=1) as environment:
        environment.rows(2)
        for _ in range(2):
            base, derived = (reward.parts for reward in environment.score([(0, "1"), (1, "2")]))
            assert base == {"mine": 100.0, "wrapped": 0.5}
            assert derived == {"mine": 2.0, "wrapped": 0.5}


def test_prompts_may_be_messages_with_a_system_prompt(best_server: EnvironmentServer, job: WriteJob) -> None:
    load = """
    messages = [vf.UserMessage(content="hi"), vf.AssistantMessage(content="hello"), vf.UserMessage(content="2+2")]
    yield Problem(Data(prompt=messages, system_prompt="be brief"))
    """
    reward = "return float([m.role for m in trace.messages] == ['system', 'user', 'assistant', 'user', 'assistant'])"
    with best_server.open(job(load=load, reward=reward), seed=1) as environment:
        [row] = environment.rows(4)
        [found] = environment.score([(0, "4")])
    assert [(message["role"], message["content"]) for message in row.messages] == [
        ("system", "be brief"),
        ("user", "hi"),
        ("assistant", "hello"),
        ("user", "2+2"),
    ]
    assert found.total == 1.0


def test_fields_are_short_texts_and_numbers(best_server: EnvironmentServer, job: WriteJob) -> None:
    files = job(
        module="""
        class Base(vf.TaskData):
            number: float = 0.5
            words: list[str] = ["no"]
            long: str = "x" * 5000
        """,
        load="yield Problem(Data(prompt='p', answer='a', name='not added'))",
    )
    files["environment.py"] = files["environment.py"].replace("class Data(vf.TaskData)", "class Data(Base)")
    with best_server.open(files, seed=1) as environment:
        [row] = environment.rows(1)
    assert row.fields == {"number": "0.5", "answer": "a"}


def test_a_job_reads_its_dataset_and_nothing_else_of_it(best_server: EnvironmentServer, job: WriteJob) -> None:
    load = """
    folder = Path(__file__).parent
    yield Problem(Data(prompt=" ".join(sorted(path.name for path in folder.iterdir()))))
    for line in Path(__file__).with_name("dataset.jsonl").read_text().splitlines():
        yield Problem(Data(prompt=json.loads(line)["prompt"]))
    """
    files = job(load=load) | {
        "dataset.jsonl": '{"prompt": "a"}\n{"prompt": "\\u00e9"}\n',
        "train.toml": "max_steps = 1",
    }
    with best_server.open(files, seed=1) as environment:
        rows = [row.messages[0]["content"] for row in environment.rows(9)]
    assert rows == ["__init__.py dataset.jsonl environment.py", "a", "é"]


def test_the_seed_decides_and_hashing_does_not(best_server: EnvironmentServer, job: WriteJob) -> None:
    load = """
    while True:
        yield Problem(Data(prompt=f"{random.random()} {hash('word')} {list({'a', 'b', 'c'})}"))
    """

    def rows(seed: int) -> list[Row]:
        with best_server.open(job(load=load), seed=seed) as environment:
            return environment.rows(40)

    assert rows(5) == rows(5)
    assert rows(5) != rows(2**62)


def test_jobs_do_not_see_each_other(best_server: EnvironmentServer, job: WriteJob) -> None:
    mark = "vf.MARK = getattr(vf, 'MARK', 0) + 1"
    for _ in range(2):
        with best_server.open(job(module=mark, load="yield Problem(Data(prompt=str(vf.MARK)))"), seed=1) as environment:
            assert environment.rows(1)[0].messages[0]["content"] == "1"


def test_two_jobs_can_be_open_at_once(best_server: EnvironmentServer, job: WriteJob) -> None:
    with best_server.open(job(), seed=1) as one, best_server.open(job(reward="return 0.5"), seed=1) as two:
        one.rows(1)
        two.rows(1)
        assert (one.score([(0, "1")])[0].total, two.score([(0, "1")])[0].total) == (1.0, 0.5)


def test_ordinary_python_works_when_confined(server: EnvironmentServer, job: WriteJob) -> None:
    """Event loops, locks, alarms, extension modules and verifiers' own maths check run under the filter."""
    reward = """
    import decimal, sqlite3, zlib
    async def later():
        await asyncio.sleep(0.001)
        with threading.Lock():
            return time.perf_counter() > 0
    results = [await asyncio.wait_for(later(), 5), *await asyncio.gather(later(), later())]
    results.append(vf.verify_boxed_math_answer("so \\\\boxed{1/2}", "0.5") == 1.0)
    results.append(sqlite3.connect(":memory:").execute("select 2 + 2").fetchone() == (4,))
    results.append(zlib.decompress(zlib.compress(b"x" * 100)) == b"x" * 100)
    with open(os.devnull, "w") as nowhere:
        print("x", file=nowhere)
    print("this goes nowhere"); sys.stderr.write("as does this")
    return float(all(results))
    """
    with server.open(job(reward=reward), seed=1) as environment:
        environment.rows(1)
        assert environment.score([(0, ""), (0, "")])[1].total == 1.0


REWARDS = {
    "raise": ("int('x')", "reward_raised", "ValueError: invalid literal"),
    "raise a base exception": ("raise asyncio.CancelledError()", "reward_raised", "CancelledError"),
    "raise with a text that raises": (
        "raise type('E', (Exception,), {'__str__': lambda s: 1 / 0})()",
        "reward_raised",
        "ZeroDivisionError",
    ),
    "recurse": ("f = lambda f: f(f); f(f)", "reward_raised", "RecursionError"),
    "None": ("return None", "reward_not_number", "returned a NoneType"),
    "string": ("return '1.0'", "reward_not_number", "returned a str"),
    "list": ("return [1.0]", "reward_not_number", "returned a list"),
    "dictionary of strings": ("return {'a': 'b'}", "reward_not_number", "'a' returned a str"),
    "empty dictionary": ("return {}", "reward_not_number", "no score"),
    "NaN": ("return math.nan", "reward_not_finite", "nan"),
    "infinity": ("return {'a': -math.inf}", "reward_not_finite", "-inf"),
    "1e308": ("return 1e308", "reward_out_of_range", "1e+308"),
    "sys.exit": ("sys.exit('bye')", "exited", "bye"),
    "os._exit": ("os._exit(3)", "exited", "exit status 3"),
    "abort": ("os.abort()", "killed", "SIGABRT"),
    "segmentation fault": ("ctypes.string_at(0)", "killed", "SIGSEGV"),
    "kill itself": ("os.kill(os.getpid(), signal.SIGKILL)", "killed", "SIGKILL"),
    "allocate 4 GB": ("bytearray(4 << 30)", "memory", "ran out of memory"),
    "answer too much": ("return {'x' * 17_000_000: 1.0}", "output", "can't be sent"),
    "too many rewards": ("return {str(n): 0.0 for n in range(100)}", "output", "rewards"),
}


@pytest.mark.parametrize("name", REWARDS)
def test_a_reward_that_misbehaves_is_a_fault_with_its_reason(
    server: EnvironmentServer, job: WriteJob, name: str
) -> None:
    reward, code, message = REWARDS[name]
    found = fault_of(server, job(reward=reward))
    assert (found.code, found.file) == (code, "environment.py"), found
    assert message in found.message


@pytest.mark.parametrize(
    ("reward", "mark"),
    [
        ("x = 1\nreturn 1 / 0", "1 / 0"),
        ("bytearray(4 << 30)", "bytearray"),
        ("sys.exit()", "sys.exit()"),
        ("return None", "async def correct"),
        ("return math.nan", "async def correct"),
    ],
)
def test_a_fault_says_the_line(best_server: EnvironmentServer, job: WriteJob, reward: str, mark: str) -> None:
    files = job(reward=reward)
    # a returned value has no line of its own; the function's is where its decorator is
    expected = line_of(files, mark) - (1 if mark.startswith("async") else 0)
    assert fault_of(best_server, files).line == expected


@pytest.mark.parametrize(
    ("files", "code", "message"),
    [
        ({"module": "import nothing_of_the_name"}, "import_error", "ModuleNotFoundError"),
        ({"module": "def f(:"}, "import_error", "SyntaxError"),
        ({"module": "sys.exit(4)"}, "exited", "exit(4)"),
        ({"module": "os._exit(4)"}, "exited", "exit status 4"),
        ({"exported": "[]"}, "no_taskset", "exports none"),
        ({"exported": "None"}, "no_taskset", "no __all__"),
        ({"exported": "5"}, "no_taskset", "TypeError"),
        ({"exported": "['Problems', 'Nothing', 7, 'Data']\ndel Problems"}, "no_taskset", "exports none"),
        (
            {"exported": "['Problems', 'More']\nclass More(Problems): pass"},
            "no_taskset",
            "exports Problems, More",
        ),
        ({"load": "raise RuntimeError('no data')"}, "load_raised", "RuntimeError: no data"),
        ({"load": "return None"}, "load_raised", "TypeError"),
        ({"load": "return [Problem(Data(prompt='x', wrong=[]))] + 3"}, "load_raised", "TypeError"),
        ({"load": "yield Problem(Data(prompt='x')); raise KeyError('k')"}, "load_raised", "KeyError"),
        ({"load": "yield {'prompt': 'x'}"}, "bad_row", "row 0 is a dict"),
        ({"load": "yield Data(prompt='x')"}, "bad_row", "row 0 is a Data"),
        ({"load": "yield None"}, "bad_row", "row 0 is a NoneType"),
        ({"load": "yield Problem(3)"}, "bad_row", "holds a int"),
        ({"load": "yield Problem(Data())"}, "bad_row", "no prompt"),
        ({"load": "yield Problem(Data(prompt=' '))"}, "bad_row", "empty prompt"),
        ({"load": "yield Problem(Data(prompt='x' * 1_000_000))"}, "row_too_large", "1000000 characters"),
    ],
)
def test_a_job_that_does_not_load_is_a_fault_with_its_reason(
    best_server: EnvironmentServer, job: WriteJob, files: dict[str, str], code: str, message: str
) -> None:
    found = fault_of(best_server, job(**files), rows=2)
    assert found.code == code, found
    assert message in found.message


def test_a_missing_all_is_named(best_server: EnvironmentServer, job: WriteJob) -> None:
    files = job()
    files["environment.py"] = files["environment.py"].replace("__all__", "all_")
    assert fault_of(best_server, files).code == "no_taskset"


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("    async def correct", "    def correct", "reward_not_coroutine"),
        ("    @vf.reward\n", "", "no_reward"),
        ("trace: vf.Trace", "trace: vf.Trace, runtime", "reward_needs_runtime"),
        ("trace: vf.Trace", "trace: vf.Trace, other", "reward_raised"),
    ],
)
def test_a_reward_that_verifiers_would_not_run_is_a_fault(
    best_server: EnvironmentServer, job: WriteJob, old: str, new: str, code: str
) -> None:
    files = job()
    assert old in files["environment.py"]
    files["environment.py"] = files["environment.py"].replace(old, new)
    found = fault_of(best_server, files)
    assert found.code == code
    if code in ("reward_not_coroutine", "reward_needs_runtime"):
        assert found.line == line_of(files, "@vf.reward")


def test_a_taskset_without_rows_gives_none(best_server: EnvironmentServer, job: WriteJob) -> None:
    with best_server.open(job(load="return []"), seed=1) as environment:
        assert environment.rows(8) == []


def test_a_prompt_that_is_no_text_is_refused(best_server: EnvironmentServer, job: WriteJob) -> None:
    found = fault_of(best_server, job(load="yield Problem(Data(prompt=chr(0xD800)))"))
    assert found.code in ("load_raised", "output")
