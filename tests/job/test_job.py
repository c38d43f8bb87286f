from __future__ import annotations

import importlib
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.errors import JobRejected
from trainwright.job.job import DATASET, ENVIRONMENT, SIZE_LIMITS, TRAIN, Job


def rejection(files: dict[str, str]) -> JobRejected:
    with pytest.raises(JobRejected) as caught:
        Job(files)
    return caught.value


def loading(folder: Path) -> JobRejected:
    with pytest.raises(JobRejected) as caught:
        Job.load(folder)
    return caught.value


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / ENVIRONMENT).write_text("x = 1\n")
    (tmp_path / TRAIN).write_text("")
    return tmp_path


def test_brings_texts_into_canonical_form() -> None:
    job = Job({TRAIN: "\ufeffa\r\nb\rc", ENVIRONMENT: "x\n"})
    assert dict(job.files) == {ENVIRONMENT: "x\n", TRAIN: "a\nb\nc\n"}
    assert job == Job({ENVIRONMENT: "x", TRAIN: "a\nb\nc\n"})


def test_the_hash_depends_on_names_and_contents() -> None:
    jobs = [Job({ENVIRONMENT: a, TRAIN: b}) for a, b in [("x", "y"), ("y", "x"), ("x\ny", ""), ("", "x\ny")]]
    jobs.append(Job({**jobs[0].files, DATASET: ""}))
    assert len({job.hash for job in jobs}) == len(jobs)
    assert jobs[0].hash == Job({TRAIN: "y", ENVIRONMENT: "x"}).hash


@pytest.mark.parametrize("missing", [ENVIRONMENT, TRAIN])
def test_a_missing_file(missing: str) -> None:
    found = rejection({name: "" for name in (ENVIRONMENT, TRAIN) if name != missing})
    assert (found.code, found.file) == ("file_missing", missing)


def test_parse_needs_both_files() -> None:
    with pytest.raises(JobRejected, match="file_missing"):
        Job.parse("```toml train.toml\n```")


def test_an_unknown_file() -> None:
    assert rejection({ENVIRONMENT: "", TRAIN: "", "run.sh": ""}).code == "file_unknown"


@pytest.mark.parametrize("character", ["\0", "\udc80"])
def test_characters_that_no_file_may_hold(character: str) -> None:
    found = rejection({ENVIRONMENT: f"a\nb{character}c", TRAIN: ""})
    assert (found.code, found.file, found.line) == ("file_encoding", ENVIRONMENT, 2)
    with pytest.raises(JobRejected, match="file_encoding"):
        Job.parse(f"```python environment.py\n{character}\n```\n```toml train.toml\n```")


@pytest.mark.parametrize("name", [ENVIRONMENT, DATASET, TRAIN])
def test_a_file_over_its_limit(name: str) -> None:
    files = {ENVIRONMENT: "", TRAIN: "", name: "é" * (SIZE_LIMITS[name] // 2)}
    found = rejection(files)
    assert (found.code, found.file) == ("file_too_large", name)
    assert Job(files | {name: "x" * (SIZE_LIMITS[name] - 1)})


texts = st.text(st.sampled_from(list("a`~ \n\r#")) | st.characters(codec="utf-8", exclude_characters="\0"))
jobs = st.fixed_dictionaries({ENVIRONMENT: texts, TRAIN: texts}, optional={DATASET: texts}).map(Job)


@given(jobs)
def test_parses_what_it_renders(job: Job) -> None:
    assert Job.parse(job.render()) == job


@given(st.text() | st.binary().map(lambda data: data.decode("utf-8", "surrogateescape")))
def test_any_text_as_a_file_is_a_job_or_a_rejection(text: str) -> None:
    code = ""
    try:
        Job({ENVIRONMENT: text, TRAIN: text}).hash  # noqa: B018
    except JobRejected as rejected:
        code = rejected.code
    assert code == ("file_encoding" if re.search("[\0\ud800-\udfff]", text) else "")


def test_loads_what_it_writes(tmp_path: Path, job: Job) -> None:
    job = Job({**job.files, DATASET: '{"word": "größe"}\n'})
    job.write(tmp_path / "runs" / "best_job")
    assert Job.load(tmp_path / "runs" / "best_job") == job
    assert os.listdir(tmp_path / "runs") == ["best_job"]


def test_writing_again_changes_nothing(tmp_path: Path, job: Job) -> None:
    job.write(tmp_path / "package")
    before = (tmp_path / "package" / ENVIRONMENT).stat().st_ino
    job.write(tmp_path / "package")
    assert (tmp_path / "package" / ENVIRONMENT).stat().st_ino == before


def test_never_overwrites(tmp_path: Path, job: Job) -> None:
    (tmp_path / "file").write_text("precious")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "precious").touch()
    job.write(tmp_path / "other")
    for taken in ("file", "folder", "other"):
        with pytest.raises(FileExistsError, match="choose another path"):
            Job({**job.files, TRAIN: "# another"}).write(tmp_path / taken)
    assert sorted(os.listdir(tmp_path)) == ["file", "folder", "other"]
    assert (tmp_path / "file").read_text() == "precious"


def test_a_failed_write_leaves_nothing(tmp_path: Path, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space"):
        job.write(tmp_path / "package")
    assert os.listdir(tmp_path) == []


def test_the_written_package_is_what_the_loader_of_verifiers_wants(
    tmp_path: Path, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaders = importlib.import_module("verifiers.v1.utils.loaders")
    job.write(tmp_path / "a_written_job")
    monkeypatch.syspath_prepend(tmp_path)
    assert loaders.taskset_class("a-written-job").__name__ == "Problems"
    config = loaders.taskset_config_type("a-written-job")(id="a-written-job")
    rows = list(loaders.load_taskset(config).take(3))
    assert [row.data.idx for row in rows] == [0, 1, 2]


def test_load_ignores_what_is_not_the_jobs(folder: Path) -> None:
    for name in ("__init__.py", "README.md", ".gitignore"):
        (folder / name).write_text("anything")
    (folder / "__pycache__").mkdir()
    assert dict(Job.load(folder).files) == {ENVIRONMENT: "x = 1\n", TRAIN: ""}


def test_load_refuses_an_unknown_file(folder: Path) -> None:
    (folder / "helpers.py").touch()
    assert loading(folder).code == "file_unknown"


def test_load_of_a_missing_folder_and_of_a_file(folder: Path) -> None:
    assert loading(folder / "nowhere").code == "folder_missing"
    found = loading(folder / TRAIN)
    assert found.code == "folder_missing"
    assert "is a file" in found.message


def test_load_refuses_links_and_special_files(folder: Path) -> None:
    secret = folder.parent / f"{folder.name}-secret"
    secret.write_text("secret")
    (folder / DATASET).symlink_to(secret)
    assert loading(folder).code == "file_link"
    (folder / DATASET).unlink()
    os.mkfifo(folder / DATASET)
    assert loading(folder).code == "file_link"
    (folder / DATASET).unlink()
    (folder / DATASET).mkdir()
    assert loading(folder).code == "file_link"


def test_load_refuses_a_huge_file_without_reading_it(folder: Path) -> None:
    with open(folder / DATASET, "wb") as file:
        file.truncate(1 << 40)
    found = loading(folder)
    assert (found.code, found.file) == ("file_too_large", DATASET)
    assert str(1 << 40) in found.message


def test_load_refuses_what_is_not_utf_8(folder: Path) -> None:
    (folder / ENVIRONMENT).write_bytes(b"x = 1\ny = '\xff'\n")
    found = loading(folder)
    assert (found.code, found.file, found.line) == ("file_encoding", ENVIRONMENT, 2)


def test_load_normalises_windows_files(folder: Path) -> None:
    (folder / ENVIRONMENT).write_bytes(b"\xef\xbb\xbfx = 1\r\n")
    assert Job.load(folder).files[ENVIRONMENT] == "x = 1\n"
