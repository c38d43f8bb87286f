"""What the agent on Tinker survives: every fault is injected by a fake server, under the real SDK.

An update that went through a fault must leave a state whose lineage has each batch once, in order: none lost, none
taken twice.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("tinker", reason="needs the extra 'tinker'")

from fake_tinker import FakeTinker
from tinker_agent import close, make_policy, rated, sample, step, update

from trainwright.errors import ConfigError, TrainwrightError

SOON = 1.5
"""A deadline that an injected fault misses. A slow machine may miss it too; the lineage is right all the same."""


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeTinker]:
    monkeypatch.setenv("TINKER_API_KEY", "tml-test")
    with FakeTinker() as server:
        yield server


def lineage_without_faults() -> tuple[str, ...]:
    """Return the batches of two steps on a server without faults."""
    with FakeTinker() as server:
        policy = make_policy(server)
        step(policy, seed=1)
        step(policy, seed=2)
        return server.state(policy.state.path).lineage


@pytest.fixture(scope="module")
def expected() -> tuple[str, ...]:
    os.environ.setdefault("TINKER_API_KEY", "tml-test")
    return lineage_without_faults()


FAULTS = {
    "a capacity pause that passes": [("retrieve_future", "pause", 5, 0)],
    "a pass that never returns": [("forward_backward", "hang", 1, 0)],
    "a step that never returns": [("optim_step", "hang", 1, 0)],
    "a step whose result is a failure": [("retrieve_future", "fail", 1, 1)],
    "a poisoned client: a step is refused": [("optim_step", 400, 1, 0)],
    "the model is gone": [("optim_step", 404, 1, 0)],
    "no connection to take the step": [("optim_step", "drop", 2, 0)],
    "the reply to a pass is lost": [("forward_backward", "lose", 1, 0)],
    "the reply to a step is lost": [("optim_step", "lose", 1, 0)],
    "too many requests": [("forward_backward", 429, 2, 0), ("optim_step", 429, 2, 0)],
    "bad gateways": [("forward_backward", 502, 3, 0), ("optim_step", 503, 3, 0)],
    "the state is saved and the reply lost": [("save_weights", "lose", 1, 0)],
    "saving never returns": [("save_weights", "hang", 1, 0)],
    "the save is refused": [("save_weights", 400, 1, 0)],
    "the new sampler is refused": [("save_weights_for_sampler", 400, 1, 0)],
    "the new sampler never comes": [("save_weights_for_sampler", "hang", 1, 0)],
}


@pytest.mark.parametrize("name", FAULTS)
def test_an_update_survives(name: str, fake: FakeTinker, expected: tuple[str, ...]) -> None:
    kinds = {"pass": "train", "step": "train", "saving": "save", "sampler": "start"}
    missed = [kinds[word] for word in name.split() if "never" in name and word in kinds]
    policy = make_policy(fake, dict.fromkeys(missed, SOON))
    step(policy, seed=1)
    answers = sample(policy, seed=2)
    for route, how, times, skip in FAULTS[name]:
        fake.inject(route, how, times, skip)
    metrics = update(policy, rated(answers))
    assert fake.faults == []
    assert fake.state(policy.state.path).lineage == expected
    assert metrics["logprob_mismatch_max"] < 1e-5
    assert len(sample(policy, seed=3)) == 8


def test_a_capacity_pause_that_does_not_pass_ends_at_the_deadline(fake: FakeTinker, expected: tuple[str, ...]) -> None:
    policy = make_policy(fake, {"train": SOON, "start": 4 * SOON})
    step(policy, seed=1)
    answers = sample(policy, seed=2)
    fault = fake.inject("retrieve_future", "pause", times=10_000)
    threading.Timer(2 * SOON, fake.faults.remove, [fault]).start()
    update(policy, rated(answers))
    assert fake.state(policy.state.path).lineage == expected


def test_a_conflict_on_saving_means_that_it_was_saved(fake: FakeTinker, expected: tuple[str, ...]) -> None:
    policy = make_policy(fake, {"save": SOON})
    step(policy, seed=1)
    answers = sample(policy, seed=2)
    fake.inject("save_weights", "lose")
    fake.inject("save_weights", 409, times=10_000)
    passes = fake.count("forward_backward")
    update(policy, rated(answers))
    assert fake.state(policy.state.path).lineage == expected
    assert fake.count("forward_backward") == passes + 1


@pytest.mark.parametrize("fault", [("asample", "hang"), ("asample", 400), ("asample", 429), ("asample", 503)])
def test_sampling_survives(fault: tuple[str, int | str], fake: FakeTinker) -> None:
    policy = make_policy(fake, {"sample": SOON} if fault[1] == "hang" else {})
    first = sample(policy)
    fake.inject(*fault)
    assert [answer.tokens for answer in sample(policy)] == [answer.tokens for answer in first]
    assert fake.faults == []


def test_a_lost_session_is_replaced(fake: FakeTinker, expected: tuple[str, ...]) -> None:
    policy = make_policy(fake)
    step(policy, seed=1)
    fake.lose_sessions()
    answers = sample(policy, seed=2)
    fake.lose_sessions()
    update(policy, rated(answers))
    assert fake.state(policy.state.path).lineage == expected


def test_a_server_that_was_down_for_a_while(fake: FakeTinker, expected: tuple[str, ...]) -> None:
    policy = make_policy(fake, {"train": SOON, "start": 4 * SOON})
    step(policy, seed=1)
    answers = sample(policy, seed=2)
    fake.stop()
    fake.lose_sessions()
    threading.Timer(2 * SOON, fake.start).start()
    update(policy, rated(answers))
    assert fake.state(policy.state.path).lineage == expected


def test_patience_ends_and_the_run_can_go_on(fake: FakeTinker, expected: tuple[str, ...], tmp_path: Path) -> None:
    policy = make_policy(fake, {"train": SOON, "start": SOON, "patience": 0.0})
    step(policy, seed=1)
    policy.save(tmp_path / "one")
    answers = sample(policy, seed=2)
    fault = fake.inject("forward_backward", 503, times=10_000)
    with pytest.raises(TrainwrightError, match=r"the policy update failed: .* Nothing is lost"):
        update(policy, rated(answers))
    fake.faults.remove(fault)
    other = make_policy(fake)
    other.load(tmp_path / "one")
    update(other, rated(answers))
    assert fake.state(other.state.path).lineage == expected


def test_no_money_stops_the_run_with_the_reason(fake: FakeTinker) -> None:
    policy = make_policy(fake, {"train": SOON})
    answers = sample(policy)
    fake.inject("forward_backward", 402, times=10_000)
    with pytest.raises(TrainwrightError, match=r"the account can't pay .* Nothing is lost: add credit"):
        update(policy, rated(answers))


def test_a_refused_key_is_said_at_once(fake: FakeTinker) -> None:
    fake.inject("create_model", 401)
    with pytest.raises(ConfigError, match="the server refuses the key"):
        sample(make_policy(fake))


# Checkpoints that are none


def test_an_expired_state_is_named_with_its_time(fake: FakeTinker, tmp_path: Path) -> None:
    policy = make_policy(fake)
    step(policy)
    policy.save(tmp_path / "old")
    fake.states.clear()
    other = make_policy(fake)
    other.load(tmp_path / "old")
    with pytest.raises(ConfigError, match=r"the server refuses: loading .*/weights/step-00001 \(kept until 20"):
        sample(other)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("tinker://run/sampler_weights/step-1", "is a sampler snapshot, which has no optimizer"),
        ("tinker://run/step-1", "is a sampler snapshot"),
        ("tinker://run/external_weights/step-1", "is an exported adapter"),
        ("runs/one", "is not of the form tinker://RUN/weights/NAME"),
    ],
)
def test_a_sampler_snapshot_is_not_a_checkpoint(path: str, message: str, fake: FakeTinker, tmp_path: Path) -> None:
    policy = make_policy(fake)
    step(policy)
    policy.save(tmp_path / "one")
    file = tmp_path / "one" / "tinker.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"path": path}))
    with pytest.raises(ConfigError, match=message):
        policy.load(tmp_path / "one")
    with pytest.raises(ValueError, match=message):
        make_policy(fake, start_from=path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"path": 3}', "\xff"])
def test_a_broken_checkpoint_is_one_line(text: str, fake: FakeTinker, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "tinker.json").write_text(text, encoding="latin-1")
    with pytest.raises(ConfigError, match="not a checkpoint of the agent 'tinker'"):
        make_policy(fake).load(tmp_path / "one")


# Killed


CHILD = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tinker_agent import make_policy, step

class There:
    url, model = sys.argv[2], "fake/unigram"

policy = make_policy(There)
step(policy, seed=1)
policy.save(Path(sys.argv[3]))
print("saved", flush=True)
step(policy, seed=2)
"""


MOMENTS = [
    "optim_step",
    *(pytest.param(one, marks=pytest.mark.slow) for one in ("save_weights", "save_weights_for_sampler")),
]


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_kill_in_an_update_takes_nothing_twice(
    moment: str, fake: FakeTinker, expected: tuple[str, ...], tmp_path: Path
) -> None:
    """Killed after the pass and before the step, after the step and before its state, after its state."""
    support = Path(__file__).parents[1] / "support"
    command = [sys.executable, "-c", CHILD, str(support), fake.url, str(tmp_path / "one")]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "saved\n"
    fault = fake.inject(moment, "hang")
    while fault in fake.faults:
        assert child.poll() is None
        time.sleep(0.02)
    os.kill(child.pid, signal.SIGKILL)
    child.wait(60)
    passes = fake.count("forward_backward")
    policy = make_policy(fake)
    policy.load(tmp_path / "one")
    step(policy, seed=2)
    assert fake.state(policy.state.path).lineage == expected
    assert fake.count("forward_backward") > passes


# Sampler and trainer


def test_a_mismatch_is_measured_and_warned_of(fake: FakeTinker, caplog: pytest.LogCaptureFixture) -> None:
    fake.shift = 0.05
    metrics = step(make_policy(fake))
    assert metrics["logprob_mismatch"] == pytest.approx(0.05, abs=1e-3)
    assert "log-probabilities differ by 0.05" in caplog.text


def test_a_mismatch_over_the_limit_stops_before_the_step(fake: FakeTinker) -> None:
    fake.shift = -0.5
    with pytest.raises(TrainwrightError, match=r"differ by 0\.5000 on average, over .*; the step was not taken"):
        step(make_policy(fake))
    assert fake.count("optim_step") == 0
    assert fake.states == {}


# Another protocol


def test_samples_that_are_not_protobuf_are_version_skew(fake: FakeTinker) -> None:
    fake.inject("retrieve_future", 200, times=100, skip=2, sequences=[])
    with pytest.raises(TrainwrightError, match="doesn't speak the protocol of the installed SDK"):
        sample(make_policy(fake))


def test_samples_without_ids_are_version_skew(fake: FakeTinker) -> None:
    original = fake._asample
    fake._asample = lambda request: {"request_id": original(request)["request_id"]}  # type: ignore[method-assign]
    with pytest.raises(TrainwrightError, match="doesn't speak the protocol of the installed SDK"):
        sample(make_policy(fake))


def test_a_pass_that_fails_at_the_start_points_to_versions(fake: FakeTinker) -> None:
    fake.inject("forward_backward", 500, times=10_000)
    with pytest.raises(TrainwrightError, match=r"a trial pass through the trainer.* see 'Versions'"):
        sample(make_policy(fake, {"train": SOON, "start": 5.0}))


def test_a_model_that_is_not_offered_is_said_with_those_that_are(fake: FakeTinker) -> None:
    with pytest.raises(ConfigError, match=r"the server refuses: making a LoRA of rank 8 on other/model.*no model"):
        sample(make_policy(fake, base_model="other/model"))


def test_closing_never_fails(fake: FakeTinker, caplog: pytest.LogCaptureFixture) -> None:
    policy = make_policy(fake, {"close": SOON})
    step(policy)
    fake.stop()
    close(policy)
    assert f"{policy.state.path} is kept until 20" in caplog.text
