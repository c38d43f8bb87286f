"""The settings: what is refused, and that the defaults fit together."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from trainwright.errors import ConfigError
from trainwright.pools.runpod.config import RunpodConfig, api_key, endpoints

TABLE: dict[str, Any] = {"image": "i", "job_command": ["j"], "gpus": [{"id": "g"}]}


def test_the_smallest_table_is_enough() -> None:
    config = RunpodConfig.model_validate(TABLE)
    assert config.max_pods == 16
    assert config.min_cuda == "12.8"
    assert config.clouds == ["SECURE"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"max_pod": 3}, "max_pod"),
        ({"gpus": []}, "gpus"),
        ({"job_command": []}, "job_command"),
        ({"min_cuda": "12"}, "min_cuda"),
        ({"times": {"heartbeat": 300}}, "three heartbeats"),
        ({"times": {"job": 50_000}}, "one boot and one job"),
        ({"times": {"lease": 7200}}, "lease"),
        ({"money": {"max_usd_total": float("nan")}}, "max_usd_total"),
        ({"clouds": ["MOON"]}, "clouds"),
        ({"max_pods": 2, "evaluation_pods": 1, "services": {"a": ["x"], "b": ["y"]}}, "beside the evaluation pods"),
    ],
)
def test_what_can_not_work_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        RunpodConfig.model_validate({**TABLE, **change})


def test_the_environment_overrides_where_runpod_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert endpoints()[0] == "https://api.runpod.io/v2"
    monkeypatch.setenv("TRAINWRIGHT_RUNPOD_BASE_URL", "http://127.0.0.1:1/v2/")
    monkeypatch.setenv("TRAINWRIGHT_RUNPOD_PROXY_TEMPLATE", "http://127.0.0.1:1/{pod_id}")
    assert endpoints() == ("http://127.0.0.1:1/v2", "http://127.0.0.1:1/{pod_id}")
    monkeypatch.setenv("TRAINWRIGHT_RUNPOD_PROXY_TEMPLATE", "http://127.0.0.1:1/")
    with pytest.raises(ConfigError, match="pod_id"):
        endpoints()
    monkeypatch.setenv("TRAINWRIGHT_RUNPOD_BASE_URL", "file:///etc")
    with pytest.raises(ConfigError, match="base URL"):
        endpoints()


@pytest.mark.parametrize(
    ("key", "words"), [(None, "not set"), ("", "not set"), ("a b c d e f", "blanks"), ("x", "blanks")]
)
def test_a_bad_key_is_one_sentence(monkeypatch: pytest.MonkeyPatch, key: str | None, words: str) -> None:
    monkeypatch.delenv("RUNPOD_API_KEY", raising=False)
    if key is not None:
        monkeypatch.setenv("RUNPOD_API_KEY", key)
    with pytest.raises(ConfigError, match=words):
        api_key()
