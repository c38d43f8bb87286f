"""`trainwright run --agent openai:MODEL`: a model on a server is measured with real jobs, stopped and resumed."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_openai import KEY, FakeOpenAI, error
from fakes import reference_answer

from trainwright.ledger import Ledger

SETTINGS = """\
steps = 1
groups = 1
group_size = 2

[agent]
max_attempts = 2

[agent.chat]
model = "another"
key_env = "SOME_KEY"
pause = 0.05
price = { prefill = 1.0, sample = 10.0 }

[pool]
workers = 2

[measure]
items = 32
reference_items = 32
reference_seeds = 1

[probe]
episodes = 0
"""
OLD_API = "```python environment.py\nimport verifiers as vf\n```\n```toml train.toml\n```\n"


def answer(body: dict[str, Any]) -> str:
    """Remember the old API first, then copy the reference job."""
    messages = body["messages"]
    return OLD_API if len(messages) == 1 else reference_answer(messages)


def test_a_model_on_a_server_is_measured(
    trainwright: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_KEY", KEY)
    (tmp_path / "chat.toml").write_text(SETTINGS)
    folder = tmp_path / "run"
    command = ["run", tmp_path / "chat.toml", "--plain", "--set", f"folder={folder}", "--agent", "openai:fake"]
    with FakeOpenAI(answer, KEY) as server:
        command += ["--base-url", server.url]
        server.acts = [error(429, Retry_After="0.1"), error(401)]
        stopped = trainwright(*command)
        assert stopped.returncode == 2
        assert stopped.stderr.splitlines()[-1].startswith(f"trainwright: fake at {server.url} refuses the request: 401")
        done = trainwright(*command)
        assert done.returncode == 0, done.stderr
        assert {body["model"] for _, _, body in server.requests} == {"fake"}
    ledger = Ledger(folder / "ledger.sqlite", read_only=True)
    episodes = ledger.all_episodes()
    assert [(episode.outcome, episode.attempts) for episode in episodes] == [("TRAINED", 2)] * 2
    for episode in episodes:
        first, second = ledger.attempts(episode.id)
        assert "write `import verifiers.v1 as vf`" in (first.verdict or "")
        assert (first.verdict or "") in second.messages[2]["content"]
        assert episode.usd == pytest.approx(2 * (1000 * 1.0 + 50 * 10.0) / 1e6)
    (step,) = ledger.steps()
    assert step.checkpoint == ""
    assert step.metrics["policy/tokens_sample"] == 4 * 50
    ledger.close()
    assert not (folder / "checkpoints").exists()
    assert len((folder / "chat.jsonl").read_text().splitlines()) >= 4
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["usd"]["agent"] == pytest.approx(4 * 0.0015)
    assert KEY not in "".join(path.read_text(errors="replace") for path in folder.iterdir() if path.is_file())
    again = trainwright(*command)
    assert again.returncode == 2  # the server is gone: said before anything else
    assert "can't be reached" in again.stderr
