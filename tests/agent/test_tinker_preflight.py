"""What is said in one line before anything starts: keys, settings, the SDK, the network."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tinker", reason="needs the extra 'tinker'")

from fake_tinker import FakeTinker

from trainwright.agent import tinker
from trainwright.agent.tinker import preflight
from trainwright.cli import main
from trainwright.config import RunConfig, parse_config
from trainwright.errors import ConfigError


@pytest.fixture
def fake() -> Iterator[FakeTinker]:
    with FakeTinker() as server:
        yield server


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("TINKER_API_KEY", "TINKER_CREDENTIAL_CMD", "TINKER_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def configured(url: str, agent: dict[str, Any] | None = None, **changes: Any) -> RunConfig:
    table = {"base_model": "m", "base_url": url} | changes
    return parse_config({"agent": {"backend": "tinker", "tinker": table} | (agent or {})}, "test")


def refused(config: RunConfig) -> str:
    with pytest.raises(ConfigError) as caught:
        preflight(config)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_missing_key(fake: FakeTinker) -> None:
    assert refused(configured(fake.url)).startswith("there is no key for Tinker: make one")
    assert fake.calls == []


def test_a_malformed_key_is_not_repeated(fake: FakeTinker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "sk-secret")
    said = refused(configured(fake.url))
    assert said.startswith("TINKER_API_KEY is not a Tinker key")
    assert "secret" not in said


@pytest.mark.parametrize("name", ["TINKER_API_KEY", "TINKER_CREDENTIAL_CMD"])
def test_keys_where_the_sdk_looks_for_them(name: str, fake: FakeTinker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "tml-something")
    preflight(configured(fake.url))
    assert fake.calls == ["healthz"]


def test_a_server_of_ones_own_needs_no_key(fake: FakeTinker) -> None:
    preflight(configured(fake.url, server="skyrl"))


def test_no_network() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        said = refused(configured(f"http://127.0.0.1:{closed.getsockname()[1]}", server="skyrl"))
    assert "can't be reached" in said
    assert "check the network and base_url" in said


def test_another_sdk(fake: FakeTinker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tinker, "version", lambda name: "0.40.1")
    said = refused(configured(fake.url, server="skyrl"))
    assert said.startswith("tinker 0.40.1 is installed, trainwright was checked with 0.38")


def test_settings_that_can_not_work(fake: FakeTinker) -> None:
    assert "needs a table [agent.tinker]" in refused(parse_config({"agent": {"backend": "tinker"}}, "test"))
    assert "temperature must be 1" in refused(configured(fake.url, {"temperature": 0.7}, server="skyrl"))
    with pytest.raises(ConfigError, match=r"agent\.tinker\.rank: must be a power of two"):
        configured(fake.url, rank=12)


def test_the_command_says_it_before_it_makes_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, run = tmp_path / "run.toml", tmp_path / "run"
    file.write_text(f'folder = "{run}"\n[agent]\nbackend = "tinker"\n[agent.tinker]\nbase_model = "Qwen/Qwen3-8B"\n')
    monkeypatch.setattr("sys.argv", ["trainwright", "run", str(file), "--yes"])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "there is no key for Tinker" in err
    assert not run.exists()
