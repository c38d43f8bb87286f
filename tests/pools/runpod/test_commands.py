"""The commands, as a person and as cron use them, and the smoke test, on the fake."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import tomli_w
from controller import PATIENT, settings
from fake_runpod import ACCOUNT_KEY, FakePod, FakeRunpod, Fault
from typer.testing import CliRunner, Result

from trainwright.errors import ConfigError
from trainwright.pools.runpod.commands import app, seconds


@pytest.fixture
def fake(pods_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRunpod]:
    """Yield a fake that the commands talk to; its pods never boot."""
    with FakeRunpod(pods_folder, boot_seconds=1e9) as service:
        monkeypatch.setenv("TRAINWRIGHT_RUNPOD_BASE_URL", service.base_url)
        monkeypatch.setenv("TRAINWRIGHT_RUNPOD_PROXY_TEMPLATE", service.proxy_template)
        monkeypatch.setenv("RUNPOD_API_KEY", ACCOUNT_KEY)
        yield service


def run(*words: str) -> Result:
    """Run a command."""
    return CliRunner().invoke(app, words)


def add(fake: FakeRunpod, name: str) -> FakePod:
    """Add a pod."""
    return fake.create({"name": name, "image": "i", "gpu": {"id": "NVIDIA L40S"}})


def names() -> tuple[str, str]:
    """Return the name of a pod past its deadline, and of one that isn't."""
    now = int(time.time())
    return f"trainwright-0123abcd-{now - 100}-00000000", f"trainwright-0123abcd-{now + 7200}-00000001"


def test_list_shows_our_pods_only(fake: FakeRunpod) -> None:
    late, young = (add(fake, name) for name in names())
    stranger = add(fake, "somebody-elses")
    result = run("list")
    assert result.exit_code == 0
    assert late.id in result.output
    assert young.id in result.output
    assert stranger.id not in result.output
    assert "2 pods, $1.72 an hour" in result.output


def test_list_gpus_shows_prices_and_stock(fake: FakeRunpod) -> None:
    result = run("list", "--gpus")
    lines = result.output.splitlines()
    assert "NVIDIA GeForce RTX 4090" in lines[0]
    assert "$  0.69/h" in lines[0]
    assert "EU-RO-1 HIGH" in lines[0]
    assert isinstance(run("list", "--gpus", "--cloud", "moon").exception, ConfigError)


def test_reap_deletes_what_is_past_its_deadline_and_says_so_by_its_exit_code(fake: FakeRunpod) -> None:
    assert run("reap").exit_code == 0
    late, young = (add(fake, name) for name in names())
    stranger = add(fake, "somebody-elses")
    result = run("reap", "--dry-run")
    assert (result.exit_code, len(fake.live())) == (1, 3)
    result = run("reap")
    assert result.exit_code == 1
    assert "past its deadline" in result.output
    assert fake.live() == [young, stranger]
    assert run("reap").exit_code == 0
    assert run("reap", "--older-than", "1h").exit_code == 0
    time.sleep(0.02)
    assert run("reap", "--older-than", "0.01s").exit_code == 1
    assert fake.live() == [stranger]
    assert late.ended_by == "the account"


def test_reap_all_spares_strangers(fake: FakeRunpod) -> None:
    for name in (*names(), "somebody-elses", "trainwright-mine"):
        add(fake, name)
    assert run("reap", "--all").exit_code == 1
    assert [pod.name for pod in fake.live()] == ["somebody-elses", "trainwright-mine"]


def test_reap_fails_aloud_when_the_api_does(fake: FakeRunpod) -> None:
    add(fake, names()[0])
    fake.faults = [Fault("api", "error", skip=1)]
    assert run("reap").exit_code == 3
    fake.faults = [Fault("api", "nonsense")]
    assert run("reap").exit_code == 3
    assert run("reap").exit_code == 1


def test_a_missing_or_wrong_key_is_a_users_mistake(fake: FakeRunpod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNPOD_API_KEY", "wrong-key")
    assert isinstance(run("list").exception, ConfigError)
    monkeypatch.delenv("RUNPOD_API_KEY")
    assert isinstance(run("reap").exception, ConfigError)


@pytest.mark.parametrize(("text", "value"), [("45s", 45), ("90m", 5400), ("1.5h", 5400), ("2d", 172800)])
def test_ages(text: str, value: float) -> None:
    assert seconds(text) == value
    for wrong in ("", "6", "h", "-1h", "1 week"):
        with pytest.raises(ConfigError, match="is not an age"):
            seconds(wrong)


def write_config(fake: FakeRunpod, folder: Path) -> Path:
    """Write a run's file with the pool's table."""
    table = settings(fake, PATIENT).model_dump()
    path = folder / "run.toml"
    path.write_text(tomli_w.dumps({"pool": {"runpod": table}}))
    return path


def test_smoke_checks_every_assumption(fake: FakeRunpod, tmp_path: Path) -> None:
    fake.boot_seconds = 0.05
    report = tmp_path / "smoke.json"
    result = run("smoke", str(write_config(fake, tmp_path)), "--yes", "--report", str(report))
    assert result.exit_code == 0, result.output
    seen = json.loads(report.read_text())
    names = ["catalog", "create", "list-after-create", "boot", "price", "job", "transfer", "token", "restart"]
    assert [check["name"] for check in seen["checks"]] == [*names, "self-deletion"]
    assert all(check["held"] for check in seen["checks"])
    assert 0 < seen["usd"] < 1
    assert [pod.ended_by for pod in fake.pods] == ["itself"]


def test_smoke_reports_what_does_not_hold_and_leaves_no_pod(fake: FakeRunpod, tmp_path: Path) -> None:
    fake.boot_seconds = 0.05
    fake.faults = [Fault("restart", "ignored"), Fault("proxy:artifact", "forge", times=9)]
    path = write_config(fake, tmp_path)
    path.write_text(path.read_text().replace("restart = 20.0", "restart = 1.0"))
    report = tmp_path / "smoke.json"
    result = run("smoke", str(path), "--yes", "--report", str(report))
    assert result.exit_code == 1
    failed = [check["name"] for check in json.loads(report.read_text())["checks"] if not check["held"]]
    assert failed == ["transfer", "restart"]
    assert fake.live() == []


def test_smoke_asks_before_it_spends(fake: FakeRunpod, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["smoke", str(write_config(fake, tmp_path))], input="n\n")
    assert result.exit_code == 1
    assert "$1.00" in result.output
    assert fake.requests == []


def test_smoke_needs_the_table(fake: FakeRunpod, tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    for text, words in (
        ("seed = 1", "has no table [pool.runpod]"),
        ("= 1", "not valid TOML"),
        ("[pool.runpod]\nimag = 1", "pool.runpod.imag: unknown key"),
    ):
        path.write_text(text)
        error = run("smoke", str(path), "--yes").exception
        assert isinstance(error, ConfigError)
        assert words in str(error)
