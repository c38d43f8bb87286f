"""The estimate: its arithmetic on configurations that are counted by hand, what it prints, and when it asks."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from trainwright.agent.brief import brief_for
from trainwright.config import RunConfig, load_config, parse_config
from trainwright.errors import ConfigError
from trainwright.estimate import CHARACTERS_A_TOKEN, IDLE, JOB_MINUTES, VERDICT_TOKENS, confirm, estimate_run, table
from trainwright.ledger import Ledger, Step
from trainwright.suites.family import suite_families

FULL = Path(__file__).parents[1] / "examples" / "full.toml"


def configured(**changes: Any) -> RunConfig:
    tinker = {"base_model": "m", "price": {"prefill": 1.0, "cached": 0.1, "sample": 2.0, "train": 3.0}}
    values: dict[str, Any] = {
        "steps": 10, "groups": 2, "group_size": 4, "probe": {"episodes": 6, "every": 4, "episodes_between": 2},
        "agent": {"backend": "tinker", "max_tokens": 400, "tinker": tinker | changes.pop("tinker", {})},
    }  # fmt: skip
    values["agent"] |= changes.pop("agent", {})
    return parse_config(values | changes, "test")


def test_one_attempt_is_counted_by_hand() -> None:
    found = estimate_run(configured())
    assert (found.training_episodes, found.probe_episodes) == (80, 2 * 6 + 2 * 2)
    tokens = found.most
    brief = tokens.prefill / (20 + 16)  # 20 groups' prompts once, each probe's once
    assert tokens.cached == pytest.approx(60 * brief, abs=1)
    assert tokens.sample == (80 + 16) * 400
    assert tokens.train == pytest.approx(80 * (brief + 400), abs=2)
    assert found.agent_usd.most == pytest.approx(tokens.dollars(found.price))  # type: ignore[arg-type]
    families = suite_families("nano")
    texts = [brief_for(family.draw(3), "full")[0]["content"] for family in families]
    assert min(map(len, texts)) <= brief * CHARACTERS_A_TOKEN <= max(map(len, texts)) + 200


def test_further_attempts_read_what_came_before() -> None:
    one, two = estimate_run(configured()), estimate_run(configured(agent={"max_attempts": 2}))
    brief = one.most.prefill / 36
    assert two.most.sample == 2 * one.most.sample
    assert two.most.prefill - one.most.prefill == pytest.approx(96 * (brief + 400 + VERDICT_TOKENS), abs=2)
    assert two.expected.sample == pytest.approx(1.5 * one.expected.sample, abs=1)
    assert one.expected.sample < one.most.sample


def test_pods_are_hours_times_price_up_to_their_cap() -> None:
    runpod = {
        "image": "i", "job_command": ["j"], "gpus": [{"id": "g", "max_usd_per_hour": 0.5}],
        "money": {"max_usd_total": 40}, "times": {"job": 1800},
    }  # fmt: skip
    found = estimate_run(configured(pool={"backend": "runpod", "runpod": runpod}))
    jobs = 96 + found.reference_jobs
    assert found.gpu_hours.expected == pytest.approx(jobs * JOB_MINUTES / 60 / (1 - IDLE))
    assert found.gpu_hours.most == pytest.approx(jobs * 0.5 / (1 - IDLE))
    assert found.pod_usd.expected == pytest.approx(min(found.gpu_hours.expected * 0.5, 40))
    assert found.pod_usd.most == 40


def test_an_unknown_price_is_tokens_only_and_said() -> None:
    config = configured(tinker={"price": None})
    found = estimate_run(config)
    lines = table(config, found)
    assert found.usd.most == 0
    assert found.most.sample > 0
    assert any("no price is known for m: tokens only" in line for line in lines)
    assert any("for want of a price: prefill, sample, train tokens" in line for line in lines)
    assert not any("USD" in line for line in lines)


def test_the_full_example_has_both_kinds_of_cost() -> None:
    config = load_config(FULL)
    found = estimate_run(config)
    assert found.training_episodes == 2000
    assert 0 < found.agent_usd.expected < found.agent_usd.most
    assert 0 < found.pod_usd.expected <= found.pod_usd.most == 400
    text = "\n".join(table(config, found))
    for part in (
        "tokens, sampled",
        "GPU hours",
        "pods, USD",
        "all, USD",
        "assumed: prices of 2026-",
        "a job takes 8 minutes",
    ):
        assert part in text


def test_the_local_run_costs_nothing_and_is_never_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    config = RunConfig()
    assert table(config, estimate_run(config))[-1] == "  nothing is rented or bought"
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    confirm(config, yes=False)


class Terminal(io.StringIO):
    """A fake terminal with something typed into it."""

    def isatty(self) -> bool:
        return True


def test_a_costly_run_is_not_started_unasked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = load_config(FULL, [f"folder={tmp_path}"])
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    with pytest.raises(ConfigError, match=r"is expected to spend \$\d+\.\d\d; add --yes"):
        confirm(config, yes=False)
    confirm(config, yes=True)
    confirm(load_config(FULL, [f"folder={tmp_path}", "ask_above_usd=1000"]), yes=False)


@pytest.mark.parametrize(("typed", "starts"), [("y\n", True), ("yes\n", True), ("\n", False), ("n\n", False)])
def test_the_answer_decides(
    typed: str, starts: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = load_config(FULL, [f"folder={tmp_path}"])
    monkeypatch.setattr("sys.stdin", Terminal(typed))
    if starts:
        confirm(config, yes=False)
    else:
        with pytest.raises(ConfigError, match="not started"):
            confirm(config, yes=False)
    assert "all, USD" in capsys.readouterr().out


def test_a_resumed_run_is_asked_about_what_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = load_config(FULL, [f"folder={tmp_path}", "steps=4"])
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    whole = estimate_run(config).usd.expected
    ledger = Ledger(tmp_path / "ledger.sqlite")
    for number in range(3):
        ledger.commit_step(Step(number, 0.3, {"reward": 0.0}, "x", 1.0))
    with pytest.raises(ConfigError, match=rf"spend \${whole / 4:.2f}"):
        confirm(config, yes=False)
    ledger.commit_step(Step(3, 0.3, {"reward": 0.0}, "x", 1.0))
    ledger.close()
    confirm(config, yes=False)
