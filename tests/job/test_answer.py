from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.errors import JobRejected
from trainwright.job.answer import ANSWER_LIMIT, DATASET, ENVIRONMENT, FILES, TRAIN, read_answer, render_answer

CODE, TABLE = "x = 1\n", "max_steps = 3\n"
TRAIN_BLOCK = f"```toml train.toml\n{TABLE}```\n"
FILES_READ = {ENVIRONMENT: CODE, TRAIN: TABLE}


def rejection(answer: str) -> JobRejected:
    with pytest.raises(JobRejected) as caught:
        read_answer(answer)
    return caught.value


@pytest.mark.parametrize(
    "opening",
    [
        "```python environment.py",
        "``` python environment.py  ",
        "```environment.py",
        "```python title=environment.py",
        '```python title="environment.py"',
        "```py {filename='environment.py'}",
        "```python:environment.py",
        "```python ./environment.py",
        "environment.py\n```python",
        "**environment.py**\n```python",
        "**`environment.py`**:\n\n```python",
        "### 1. `environment.py`\n```python",
        "# environment.py\n```py",
        "File: environment.py\n```",
        "Filename: `./environment.py`\n```",
        "```python\n# environment.py",
        "```python\n# file: environment.py",
        "```\nenvironment.py",
    ],
)
def test_reads_every_common_way_to_name_a_file(opening: str) -> None:
    assert read_answer(f"Here is the job.\n{opening}\n{CODE}```\nAnd:\n{TRAIN_BLOCK}Done.") == FILES_READ


@pytest.mark.parametrize("fence", ["````", "~~~", "~~~~~~"])
def test_reads_other_fences(fence: str) -> None:
    assert read_answer(f"{fence}python environment.py\n{CODE}{fence}\n{TRAIN_BLOCK}") == FILES_READ


def test_a_longer_fence_holds_a_shorter_one() -> None:
    code = '"""\n```toml train.toml\n```\n"""\n'
    assert read_answer(f"````python environment.py\n{code}````\n{TRAIN_BLOCK}")[ENVIRONMENT] == code


def test_a_longer_closing_fence_closes() -> None:
    assert read_answer(f"```python environment.py\n{CODE}`````\n{TRAIN_BLOCK}") == FILES_READ


def test_an_indented_block_loses_its_indent() -> None:
    answer = f"1. The code:\n   ```python environment.py\n   if x:\n       y\n\n   ```\n{TRAIN_BLOCK}"
    assert read_answer(answer)[ENVIRONMENT] == "if x:\n    y\n\n"


def test_a_comment_with_the_name_stays_when_the_fence_names_the_file() -> None:
    answer = f"```python environment.py\n# environment.py\n{CODE}```\n{TRAIN_BLOCK}"
    assert read_answer(answer)[ENVIRONMENT] == f"# environment.py\n{CODE}"


def test_ignores_blocks_without_a_name_and_inline_code() -> None:
    answer = f"Run:\n```bash\nls\n```\nor ```x``` or\n```x```\n```python environment.py\n{CODE}```\n{TRAIN_BLOCK}"
    assert read_answer(answer) == FILES_READ


def test_a_name_before_one_block_does_not_name_the_next() -> None:
    answer = f"environment.py\n```python\n{CODE}```\n```bash\nls\n```\n{TRAIN_BLOCK}"
    assert read_answer(answer) == FILES_READ


@pytest.mark.parametrize("line_end", ["\r\n", "\r"])
def test_normalises_line_ends(line_end: str) -> None:
    answer = f"\ufeff```python environment.py\n{CODE}```\n{TRAIN_BLOCK}".replace("\n", line_end)
    assert read_answer(answer) == FILES_READ


@pytest.mark.parametrize("separator", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028"])
def test_only_line_feeds_end_a_line(separator: str) -> None:
    code = f"x = '{separator}```'\n"
    assert read_answer(f"```python environment.py\n{code}```\n{TRAIN_BLOCK}")[ENVIRONMENT] == code


@pytest.mark.parametrize("answer", ["", "  \n\r\n\t", "\ufeff"])
def test_an_empty_answer(answer: str) -> None:
    assert rejection(answer).code in ("answer_empty", "answer_no_blocks")


def test_no_block_names_a_file() -> None:
    found = rejection("I can't do that.\n```python\nx = 1\n```")
    assert found.code == "answer_no_blocks"
    assert "```python environment.py" in found.message


def test_two_blocks_of_one_file() -> None:
    found = rejection(f"{TRAIN_BLOCK}text\n{TRAIN_BLOCK}")
    assert (found.code, found.file, found.line) == ("file_duplicate", "answer", 5)


@pytest.mark.parametrize("name", ["helpers.py", "src/environment.py", "data.json", "env.py", "config.yaml"])
def test_an_unknown_file(name: str) -> None:
    found = rejection(f"{TRAIN_BLOCK}```python {name}\nx\n```")
    assert (found.code, found.line) == ("file_unknown", 4)
    assert name in found.message


def test_an_answer_cut_off_inside_a_block() -> None:
    found = rejection(f"{TRAIN_BLOCK}```python environment.py\nx = 1")
    assert (found.code, found.line) == ("block_unclosed", 4)


def test_a_forgotten_closing_fence_is_not_swallowed() -> None:
    found = rejection(f"```python environment.py\n{CODE}{TRAIN_BLOCK}")
    assert (found.code, found.line) == ("block_unclosed", 1)
    assert "line 3" in found.message


def test_ten_megabytes_are_refused_unread() -> None:
    class Unread(str):
        """An answer that fails the test when anything but its length is looked at."""

        def __getattribute__(self, name: str) -> object:
            raise AssertionError(f"the answer was read: {name}")

    assert rejection(Unread("x" * 10_000_000)).code == "answer_too_large"
    assert rejection(" " * ANSWER_LIMIT).code == "answer_empty"


texts = st.text(st.sampled_from(list("a`~ \n\t#")) | st.characters(codec="utf-8", exclude_characters="\r\ufeff")).map(
    lambda text: text if not text or text.endswith("\n") else text + "\n"
)


@given(st.fixed_dictionaries({ENVIRONMENT: texts, TRAIN: texts}, optional={DATASET: texts}))
def test_reads_back_what_it_renders(files: dict[str, str]) -> None:
    assert read_answer(render_answer(files)) == files


pieces = st.sampled_from([*FILES, "```", "````", "~~~", "python ", "\n", "\r\n", " ", "# ", "**", "title=", ".py", "a"])


@given(st.lists(pieces | st.text(max_size=5), max_size=60).map("".join))
def test_any_text_is_read_or_rejected(answer: str) -> None:
    try:
        files = read_answer(answer)
    except JobRejected:
        return
    assert files
    assert set(files) <= set(FILES)
