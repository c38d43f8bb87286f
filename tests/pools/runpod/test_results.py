"""From an ended job to its outcome."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.errors import InfraFault
from trainwright.pools.pool import Outcome, OutcomeClass, TrainResult
from trainwright.pools.runpod.agent_client import JobStatus
from trainwright.pools.runpod.evaluation import parse_replies, request_files, request_key
from trainwright.pools.runpod.pod_evaluate import seed_of
from trainwright.pools.runpod.results import ResultFiles, from_json, outcome_of, parse_metrics, to_json


def status(**changes: object) -> JobStatus:
    """Return the status of a job that trained."""
    reply = {
        "state": "DONE",
        "ended": "exited",
        "exit_code": 0,
        "wall_seconds": 5.0,
        "artifact": {"size": 10, "sha256": "0" * 64},
        "fault": None,
        "gpu_ok": True,
    }
    return JobStatus.parse(reply | changes)


@pytest.mark.parametrize(
    ("changes", "kind", "reason"),
    [
        ({}, "TRAINED", ""),
        ({"artifact": None}, "JOB_FAULT", "no_artifact"),
        ({"artifact": {"size": 101, "sha256": "0" * 64}}, "JOB_FAULT", "artifact_too_large"),
        ({"ended": "timeout", "exit_code": -9}, "JOB_FAULT", "timeout"),
        ({"ended": "oom", "exit_code": -9}, "JOB_FAULT", "out_of_memory"),
        ({"ended": "signal", "exit_code": -11}, "JOB_FAULT", "killed"),
        ({"exit_code": 1}, "JOB_FAULT", "crash"),
        ({"exit_code": 1, "fault": {"code": "nan_loss", "message": "step 3"}}, "JOB_FAULT", "nan_loss"),
        ({"fault": {"code": "INFRA", "message": "forged"}}, "TRAINED", ""),
    ],
)
def test_an_ending_is_what_the_agent_saw(changes: dict[str, object], kind: str, reason: str) -> None:
    outcome = outcome_of(status(**changes), 100)
    assert (outcome.kind, outcome.reason) == (kind, reason)
    assert bool(outcome.detail) == (kind == "JOB_FAULT")


def test_metrics_keep_finite_numbers_and_drop_the_rest() -> None:
    lines = [
        '{"reward": 0.5, "step": 3, "note": "x", "flag": true, "nan": NaN, "inf": Infinity, "big": 1e999}',
        "not json",
        "[1, 2]",
        '{"a\\u0000b": 1}',
        '{"huge": ' + "9" * 5000 + "}",  # more digits than Python reads
    ]
    assert parse_metrics("\n".join(lines).encode()) == [{"reward": 0.5, "step": 3.0}, {"a b": 1.0}]


@given(st.binary(max_size=300))
def test_any_bytes_are_metrics_of_finite_numbers(data: bytes) -> None:
    for row in parse_metrics(data):
        assert all(math.isfinite(value) for value in row.values())


def test_results_survive_and_only_the_newest_weights_are_kept(tmp_path: Path) -> None:
    files = ResultFiles(tmp_path / "results", keep=2)
    for number in range(4):
        files.save(f"key{number}", bytes([number]))
    assert files.load("key3") == b"\x03"
    assert sum(files.load(f"key{number}") is not None for number in range(4)) == 2
    outcome = Outcome(OutcomeClass.TRAINED)
    result = TrainResult(outcome, b"w", [{"a": 1.0}], 5, {}, 2.0, "pod", 0.25)
    assert from_json(json.loads(json.dumps(to_json(result))), b"w") == result


@pytest.mark.parametrize("data", [b"", b"[]", b'["a"]', b'["a", null]', b'{"0": "a"}', b"[" * 9999, b'["a", "b", "c"]'])
def test_missing_replies_are_our_fault(data: bytes) -> None:
    with pytest.raises(InfraFault):
        parse_replies(data, 2)
    assert parse_replies(b'["a", ""]', 2) == ["a", ""]


def test_a_request_is_known_by_everything_that_shapes_its_replies() -> None:
    base = {"adapter": {}, "prompts": ["p"], "seed": 1, "max_tokens": 5, "temperature": 1.0}
    changes = [{}, {"adapter": {"f": b"w"}}, {"prompts": ["q"]}, {"seed": 2}, {"max_tokens": 6}, {"temperature": 0.5}]
    keys = {request_key("small", request_files(**{**base, **change})) for change in changes}  # type: ignore[arg-type]
    assert len(keys) == len(changes)
    assert request_key("large", request_files(**base)) not in keys  # type: ignore[arg-type]


@given(st.integers(), st.integers(0, 10_000))
def test_prompt_seeds_are_31_bits(seed: int, index: int) -> None:
    assert 0 <= seed_of(seed, index) < 2**31
    assert seed_of(seed, index) != seed_of(seed, index + 1) or seed_of(seed, index) != seed_of(seed, index + 2)
