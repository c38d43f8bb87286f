from __future__ import annotations

import dataclasses
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.errors import JobRejected
from trainwright.job.hyperparameters import Hyperparameters, hyperparameter_table, parse_hyperparameters
from trainwright.suites.family import Offer, Task

TASK = Task("test", "test", 0, {}, "", (), (Offer("small", 960), Offer("large", 480)), 12)


def rejection(text: str) -> JobRejected:
    with pytest.raises(JobRejected) as caught:
        parse_hyperparameters(text, TASK)
    assert caught.value.file == "train.toml"
    assert caught.value.message.endswith((".", "?"))
    return caught.value


def test_defaults_come_from_the_table_and_the_task() -> None:
    found = parse_hyperparameters("", TASK)
    assert found == Hyperparameters("small", max_completion_tokens=12)
    assert found.rollouts == 960


def test_every_key_can_be_set() -> None:
    wanted = Hyperparameters("large", 1e-3, 5, 32, 4, 0.7, 9, 0.01, 0.5, 2, 8, 16.0, "mlp", "mean_std")
    assert all(
        value != field.default
        for field, value in zip(dataclasses.fields(wanted), dataclasses.astuple(wanted), strict=True)
    )
    text = "".join(f"{name} = {value!r}\n".replace("'", '"') for name, value in dataclasses.asdict(wanted).items())
    assert parse_hyperparameters(text, TASK) == wanted


def test_an_integer_passes_for_a_number_and_becomes_one() -> None:
    found = parse_hyperparameters("temperature = 1\nlora_alpha = 16", TASK)
    assert isinstance(found.temperature, float)
    assert isinstance(found.lora_alpha, float)


@pytest.mark.parametrize(
    ("text", "code", "line", "says"),
    [
        ("max_steps = 3\nlr = 1", "toml_key", 2, "did you mean learning_rate?"),
        ("learning-rate = 1e-3", "toml_key", 1, "did you mean learning_rate?"),
        ("seed = 1", "toml_key", 1, "the keys are student, learning_rate"),
        ("max_steps = 3.0", "toml_type", 1, "an integer from 1 to 2000"),
        ("max_steps = true", "toml_type", 1, "is a boolean"),
        ('max_steps = "3"', "toml_type", 1, "is a string"),
        ("learning_rate = false", "toml_type", 1, "a number from 1e-6 to 0.1"),
        ("learning_rate = [1]", "toml_type", 1, "is a list"),
        ("max_steps = 1979-05-27", "toml_type", 1, "a date or time"),
        ("[max_steps]\na = 1", "toml_type", 1, "is a table"),
        ("advantage = 1", "toml_type", 1, '"mean" or "mean_std"'),
        ("student = 64", "toml_type", 1, "it must be a string"),
        ("learning_rate = nan", "toml_range", 1, "1e-6 to 0.1"),
        ("learning_rate = inf", "toml_range", 1, "1e-6 to 0.1"),
        ("learning_rate = -inf", "toml_range", 1, "1e-6 to 0.1"),
        ("learning_rate = -0.001", "toml_range", 1, "1e-6 to 0.1"),
        ("learning_rate = 0", "toml_range", 1, "1e-6 to 0.1"),
        ("max_steps = -1", "toml_range", 1, "1 to 2000"),
        (f"temperature = {'9' * 4000}", "toml_range", 1, "0.1 to 2"),
        ("learning_rate = 1e400", "toml_range", 1, "1e-6 to 0.1"),
        ("group_size = 1", "toml_range", 1, "2 to 64"),
        ("lora_rank = 65", "toml_range", 1, "0 to 64"),
        ('lora_target = "q_proj"', "toml_range", 1, '"attention" or "mlp" or "all"'),
        ("max_completion_tokens = 13", "toml_range", 1, "at most 12"),
        ("max_steps = 4\nwarmup_steps = 5", "toml_range", 2, "at most 4"),
        ("group_size = 6", "toml_divide", 1, "2, 4, 8, 16, 32, 64"),
        ("batch_size = 67", "toml_divide", 0, "even batch_size"),
        ("max_steps = 16", "budget", 1, "max_steps = 15 or fewer"),
        ('student = "large"\nmax_steps = 8', "budget", 2, "budget of 480 for large"),
        ("max_steps = 1\nbatch_size = 968", "budget", 1, "batch_size of at most 960"),
        ('student = "huge"', "student", 1, '"small", "large"'),
        ("[train]\nmax_steps = 3", "toml_table", 1, "without a header"),
        ("[[train]]\nmax_steps = 3", "toml_table", 1, "without a header"),
        ("train.max_steps = 3", "toml_table", 1, "without a header"),
        ("[1, 2]", "toml_syntax", 1, "not TOML"),
        ("max_steps = 3\n\nbatch_size =", "toml_syntax", 3, "not TOML"),
        ("max_steps = 3\nmax_steps = 4", "toml_syntax", 2, "not TOML"),
        ("x = '''\n\n", "toml_syntax", 3, "not TOML"),
        (f"x = {'9' * 5000}", "toml_syntax", 0, "too long"),
        (f"x = {'[' * 5000}", "toml_syntax", 0, "too deep"),
    ],
)
def test_names_what_is_wrong_and_what_is_allowed(text: str, code: str, line: int, says: str) -> None:
    found = rejection(text)
    assert (found.code, found.line) == (code, line)
    assert says in found.message
    assert len(found.message) < 300


keys = st.sampled_from([field.name for field in dataclasses.fields(Hyperparameters)]) | st.text(max_size=8)
values = st.one_of(
    st.integers().map(str),
    st.floats().map(repr),
    st.sampled_from(["true", '"small"', '"all"', "[]", "{}", "''", "1979-05-27", "nan", "0x10", "1_0"]),
    st.text(max_size=6),
)
tables = st.lists(st.tuples(keys, values), max_size=6).map(
    lambda pairs: "\n".join(f"{key} = {value}" for key, value in pairs)
)


@given(st.text() | tables)
def test_any_text_is_valid_or_rejected(text: str) -> None:
    line = 0
    try:
        found = parse_hyperparameters(text, TASK)
    except JobRejected as rejected:
        line = rejected.line
    else:
        assert found.rollouts <= 960
    assert 0 <= line <= text.count("\n") + 1


@given(
    steps=st.integers(1, 2000),
    groups=st.integers(1, 64),
    group_size=st.sampled_from([8, 12, 16]),
    budget=st.integers(1, 200_000),
)
def test_accepts_exactly_what_the_budget_allows(steps: int, groups: int, group_size: int, budget: int) -> None:
    task = dataclasses.replace(TASK, offers=(Offer("small", budget),))
    text = f"max_steps = {steps}\nbatch_size = {groups * group_size}\ngroup_size = {group_size}"
    if steps * groups * group_size <= budget:
        assert parse_hyperparameters(text, task).rollouts == steps * groups * group_size
    else:
        with pytest.raises(JobRejected, match="budget"):
            parse_hyperparameters(text, task)


@given(batch_size=st.integers(8, 1024), group_size=st.integers(2, 64))
def test_every_group_size_it_suggests_divides(batch_size: int, group_size: int) -> None:
    task = dataclasses.replace(TASK, offers=(Offer("small", 10**9),))
    advice: list[str] = []
    code = ""
    try:
        parse_hyperparameters(f"batch_size = {batch_size}\ngroup_size = {group_size}", task)
    except JobRejected as rejected:
        code = rejected.code
        advice = re.findall(r"\d+", rejected.message.partition("use a group_size of")[2])
    assert code == ("toml_divide" if batch_size % group_size else "")
    assert all(batch_size % int(size) == 0 for size in advice)


def test_the_table_has_a_row_for_every_field() -> None:
    _, _, *rows = hyperparameter_table().splitlines()
    assert [row.split("`")[1] for row in rows] == [field.name for field in dataclasses.fields(Hyperparameters)]
    assert "| `learning_rate` | number | 1e-6 to 0.1 | `0.0005` |" in hyperparameter_table()
