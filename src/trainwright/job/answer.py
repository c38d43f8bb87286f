"""An agent's answer as text: named fenced blocks, read from what language models really write, rendered in one form.

The canonical form of a block is a fence, a language and the file's name, as in CommonMark 0.31.2 (section 4.5):

    ```python environment.py
    ...
    ```

Accepted as well: tildes and longer fences, an indented block, the name as `title=`, `filename=` or after a colon, the
name alone in place of the language, and a line before the block or its first line that holds only the name. Text
around the blocks and blocks without a name are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from trainwright.errors import JobRejected

ENVIRONMENT, DATASET, TRAIN = "environment.py", "dataset.jsonl", "train.toml"
FILES = (ENVIRONMENT, DATASET, TRAIN)
ANSWER_LIMIT = 256 * 1024
"""Characters of an answer; a longer one is refused unread."""

_LANGUAGES = {ENVIRONMENT: "python", DATASET: "jsonl", TRAIN: "toml"}
_SEPARATORS = re.compile(r"[\s=:,;|(){}\[\]<>\"'`]+")
_FILE_LIKE = re.compile(r"[\w./-]*\w\.[A-Za-z][A-Za-z0-9]{0,7}")
_LABEL = re.compile(r"(?:file(?:name)?\b\W*)?(?:\./)?(" + "|".join(map(re.escape, FILES)) + ")", re.IGNORECASE)
_DECORATION = " \t#*_`\"'>:-./0123456789()[]"
_LONGEST_LABEL = 80
_FENCE_RUN = re.compile(r"^[ \t]*(`{3,})", re.MULTILINE)


@dataclass
class _Block:
    """An open block: where and how its fence opened, its file ('' while unnamed), and the lines so far."""

    fence: str
    indent: int
    opened: int
    name: str
    lines: list[str] = field(default_factory=list)

    def text(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)


def read_answer(answer: str) -> dict[str, str]:
    """Return the files in an answer by name, with line feeds only; raise `JobRejected`.

    Linear in the answer's length. Codes: answer_too_large, answer_empty, answer_no_blocks, block_unclosed,
    file_unknown, file_duplicate.
    """
    if len(answer) > ANSWER_LIMIT:
        raise JobRejected(
            "answer_too_large", f"The answer has {len(answer)} characters; write at most {ANSWER_LIMIT}.", "answer"
        )
    if not answer.strip():
        raise JobRejected("answer_empty", f"The answer is empty; write {_wanted()}.", "answer")

    files: dict[str, str] = {}
    block: _Block | None = None
    label = ""
    for number, line in enumerate(normalised(answer).split("\n"), start=1):
        if block is None:
            block = _opening(line, number, label)
            label = line if line.strip() else label
        elif _closes(line, block):
            _close(block, files)
            block, label = None, ""
        else:
            nested = _opening(line, number, "")
            if nested is not None and nested.name and nested.fence.startswith(block.fence):
                raise _unclosed(block, f"the block of {nested.name} opens inside it at line {number}")
            block.lines.append(_dedented(line, block.indent))
    if block is not None:
        raise _unclosed(block, "the answer ends inside it")
    if not files:
        raise JobRejected("answer_no_blocks", f"No fenced block names a file; write {_wanted()}.", "answer")
    return files


def render_answer(files: Mapping[str, str]) -> str:
    """Return the canonical answer that `read_answer` reads back to the same files."""
    return "\n".join(_rendered(name, files[name]) for name in FILES if name in files)


def normalised(text: str) -> str:
    """Return the text with line feeds only and without a byte order mark."""
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def _rendered(name: str, text: str) -> str:
    longest = max((len(run) for run in _FENCE_RUN.findall(text)), default=2)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{_LANGUAGES[name]} {name}\n{text}{fence}\n"


def _opening(line: str, number: int, label: str) -> _Block | None:
    """Return the block that a line opens, or None. `label` is the last line of text before it."""
    body = line.lstrip(" \t")
    if not body.startswith(("```", "~~~")):
        return None
    info = body.lstrip(body[0])
    fence = body[: len(body) - len(info)]
    if "`" in info and fence[0] == "`":
        return None  # inline code, not a fence
    name = _name_in(info, number) or _name_of(label)
    return _Block(fence, len(line) - len(body), number, name)


def _closes(line: str, block: _Block) -> bool:
    body = line.strip(" \t")
    indent = len(line) - len(line.lstrip(" \t"))
    return len(body) >= len(block.fence) and not body.strip(block.fence[0]) and indent <= block.indent + 3


def _close(block: _Block, files: dict[str, str]) -> None:
    if not block.name and block.lines:
        block.name = _name_of(block.lines[0])
        if block.name:
            del block.lines[0]
    if not block.name:
        return
    if block.name in files:
        raise JobRejected(
            "file_duplicate", f"{block.name} is written twice; write each file in one block.", "answer", block.opened
        )
    files[block.name] = block.text()


def _name_in(info: str, number: int) -> str:
    """Return the file that an info string names, or ''; raise `JobRejected` when it names an unknown one."""
    for token in _SEPARATORS.split(info):
        token = token.removeprefix("./")
        if token in FILES:
            return token
        if _FILE_LIKE.fullmatch(token):
            raise unknown_file(token, "answer", number)
    return ""


def _name_of(label: str) -> str:
    """Return the file that a line consists of, decoration aside, or ''."""
    if len(label) > _LONGEST_LABEL:
        return ""
    match = _LABEL.fullmatch(label.strip(_DECORATION))
    return match[1].lower() if match else ""


def _dedented(line: str, indent: int) -> str:
    spaces = len(line) - len(line.lstrip(" \t"))
    return line[min(indent, spaces) :]


def unknown_file(name: str, place: str, line: int = 0) -> JobRejected:
    """Return the rejection of a file that is none of a job's."""
    return JobRejected(
        "file_unknown", f"{name!r} is not a file of a job; a job holds only {', '.join(FILES)}.", place, line
    )


def _unclosed(block: _Block, how: str) -> JobRejected:
    what = f"block of {block.name}" if block.name else "block"
    message = f"The {what} is not closed: {how}; close it with a line {block.fence}."
    return JobRejected("block_unclosed", message, "answer", block.opened)


def _wanted() -> str:
    return f"one block that opens with ```python {ENVIRONMENT} and one that opens with ```toml {TRAIN}"
