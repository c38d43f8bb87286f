"""The engine's whole way, with stub programs that write prime-rl's run folder and fail in each known manner."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trainwright.backends import make_engine
from trainwright.config import EngineConfig
from trainwright.engines.prime_rl import PrimeRL
from trainwright.engines.prime_rl_settings import PrimeRLSettings
from trainwright.engines.process_tree import descendants
from trainwright.errors import InfraFault, JobFault, JobRejected
from trainwright.job.hyperparameters import Hyperparameters
from trainwright.students.adapter import adapter_of_bytes
from trainwright.students.architecture import QWEN3

JOB = Hyperparameters(
    student="qwen3-0.6b",
    learning_rate=1e-4,
    max_steps=3,
    batch_size=8,
    group_size=4,
    max_completion_tokens=64,
    lora_rank=1,
    lora_alpha=2.0,
    lora_target="attention",
)


class OnlyName:
    """A student of which nothing but the name may be used."""

    name = "qwen3-0.6b"


Train = Callable[..., Any]


@pytest.fixture
def train(installation: Any, fake_environment: Any) -> Train:
    """Return a function that trains under a scenario and checks that nothing of the run is left."""

    def run(
        scenario: dict[str, str] | None = None,
        environment: Any = None,
        job: Hyperparameters = JOB,
        on_step: Any = None,
        **settings: Any,
    ) -> Any:
        before = descendants(os.getpid())
        engine = installation.engine(scenario, **settings)
        try:
            return engine.train(OnlyName(), environment or fake_environment(), job, 1, on_step)
        finally:
            assert descendants(os.getpid()) == before
            orphan = installation.bin / "orphan.pid"
            assert not (orphan.exists() and Path("/proc", orphan.read_text()).exists())
            if not settings.get("keep_runs"):
                assert not list(installation.work.glob("*"))

    return run


@pytest.mark.parametrize("sharing", ["listed_twice", "own_server"])
def test_a_job_is_trained_and_its_adapter_comes_back(
    train: Train, installation: Any, fake_environment: Any, sharing: str
) -> None:
    environment, steps = fake_environment(), []
    training = train(environment=environment, on_step=steps.append, sharing=sharing, keep_runs=True)
    adapter = adapter_of_bytes(training.weights, QWEN3["qwen3-0.6b"], "qwen3-0.6b")
    assert (adapter.rank, adapter.alpha, adapter.target) == (1, 2.0, "attention")
    assert training.metrics == steps
    assert [row["step"] for row in steps] == [1.0, 2.0, 3.0]
    assert steps[0]["reward_mean"] == 1.5  # of the last digits 0 to 3
    assert steps[0]["learning_rate"] == 1e-4
    assert steps[0]["error_share"] == 0.0
    assert {"loss", "grad_norm", "entropy", "truncation_share", "peak_memory_gib"} <= steps[0].keys()
    assert len(environment.asked) == JOB.rollouts
    assert {row for row, _ in environment.asked} == {0, 1, 2, 3, 4, 5}

    [folder] = installation.work.iterdir()
    assert (folder / "inference.toml").exists() == (sharing == "own_server")
    log = folder / ("inference.log" if sharing == "own_server" else "outputs/run/logs/latest/inference.log")
    assert "Starting vLLM with Qwen/Qwen3-0.6B on 0\n" in log.read_text()
    assert "Starting RL trainer on 0\n" in (folder / "outputs/run/logs/latest/trainer.log").read_text()


def test_the_programs_see_no_secret_of_ours(
    train: Train, installation: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RUNPOD_API_KEY", "secret")
    monkeypatch.setenv("HF_TOKEN", "secret")
    launcher = installation.bin / "rl"
    launcher.write_text(launcher.read_text().replace("\n", f"\nenv > {tmp_path}/env\n", 1))
    train()
    seen = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines() if "=" in line)
    assert not {"RUNPOD_API_KEY", "HF_TOKEN"} & seen.keys()
    assert seen["WANDB_MODE"] == "disabled"
    assert seen["CUDA_VISIBLE_DEVICES"] == "0,0"


def cases(names: Iterable[str], slow: Collection[str]) -> list[Any]:
    """Return the names as parameters, some of them for the slow tests: variants of what the others cover."""
    return [pytest.param(name, marks=[pytest.mark.slow] if name in slow else []) for name in names]


JOB_FAULTS = {
    "no reward differs": ({"orchestrator": "learns nothing"}, "no_signal"),
    "the trainer runs out of memory on a batch": ({"torchrun": "runs out of memory in step 2"}, "memory"),
    "the loss becomes NaN": ({"torchrun": "loses its numbers in step 2"}, "non_finite"),
    "the adapter holds NaN": ({"torchrun": "writes NaN"}, "non_finite"),
    "the adapter is zero": ({"torchrun": "writes zeros"}, "no_signal"),
}


@pytest.mark.parametrize("name", cases(JOB_FAULTS, slow={"the adapter holds NaN"}))
def test_what_the_job_did_is_its_fault(train: Train, name: str) -> None:
    scenario, code = JOB_FAULTS[name]
    with pytest.raises(JobFault) as caught:
        train(scenario)
    assert caught.value.code == code


INFRA_FAULTS = {
    "the model server does not fit": ({"inference": "does not fit"}, "gpu_memory", "No available memory"),
    "the trainer does not fit": ({"torchrun": "does not fit"}, "gpu_memory", "5.00 GiB"),
    "vLLM loses an adapter": ({"inference": "loses an adapter"}, "adapter_lost", "r1-a32.0"),
    "no file handles": ({"inference": "has no file handles"}, "file_handles", "Errno 24"),
    "an old driver": ({"inference": "has an old driver"}, "driver", "too old"),
    "no weights": ({"inference": "finds no model"}, "model_missing", "cache"),
    "attention for another card": ({"torchrun": "lacks its attention"}, "attention", "flash_attn_3"),
    "a full disk": ({"torchrun": "finds the disk full"}, "disk_full", "Errno 28"),
    "the package is missing": ({"env-server": "misses the package"}, "package_missing", "not found"),
    "no rollout works": ({"orchestrator": "can't reach the model"}, "no_rollouts", "0 replies"),
    "a refused configuration": ({"rl": "refuses the configuration"}, "config_refused", "1 validation error"),
    "an unknown crash": ({"torchrun": "crashes"}, "prime_rl_failed", "trainer failed: AssertionError: offsets"),
    "a killed orchestrator": ({"orchestrator": "dies in step 2"}, "prime_rl_failed", "orchestrator failed"),
    "a killed trainer": ({"torchrun": "dies in step 2"}, "prime_rl_failed", "trainer failed"),
    "a killed launcher": ({"rl": "is killed", "orchestrator": "hangs in step 2"}, "prime_rl_failed", "137"),
    "an adapter of another rank": ({"torchrun": "writes another rank"}, "bad_adapter", "not the one"),
    "no card": ({"nvidia-smi": "finds no card"}, "no_gpu", "No devices"),
    "an old card": ({"nvidia-smi": "has capability 7.5"}, "gpu_too_old", "7.5"),
    "a card in use": ({"nvidia-smi": "finds the card in use"}, "gpu_busy", "30000 MiB"),
}


TEXTS = {"no file handles", "an old driver", "no weights", "attention for another card", "a full disk"}
TEXTS |= {"vLLM loses an adapter", "the trainer does not fit", "a refused configuration", "an old card"}
"""Faults that differ from others only in what a log says, which `test_prime_rl_failures` covers by default."""


@pytest.mark.parametrize("name", cases(INFRA_FAULTS, slow=TEXTS))
def test_everything_else_is_not(train: Train, name: str) -> None:
    scenario, code, words = INFRA_FAULTS[name]
    with pytest.raises(InfraFault) as caught:
        train(scenario)
    assert caught.value.code == code
    assert words in caught.value.message
    assert "\x1b" not in caught.value.message
    assert len(caught.value.message) < 600


def test_the_model_server_s_death_is_seen_when_it_is_ours(train: Train) -> None:
    with pytest.raises(InfraFault) as caught:
        train({"inference": "does not fit"}, sharing="own_server")
    assert caught.value.code == "gpu_memory"


STALLS = {
    "silence": ({"orchestrator": "hangs in step 2"}, {"silence": 0.5}),
    "logs without steps": ({"orchestrator": "only logs from step 2"}, {"step": 0.7}),
    "no first step": ({"orchestrator": "hangs in step 1"}, {"first_step": 1.0}),
    "no first step in the whole time": ({"orchestrator": "hangs in step 1"}, {"wall": 1.0}),
    "a last adapter that is never complete": (
        {"torchrun": "never finishes the last adapter", "rl": "hangs at its end"},
        {"step": 0.7},
    ),
}


@pytest.mark.parametrize("name", cases(STALLS, slow={"no first step", "a last adapter that is never complete"}))
def test_a_run_without_progress_is_stopped(train: Train, name: str) -> None:
    scenario, patience = STALLS[name]
    with pytest.raises(InfraFault) as caught:
        train(scenario, grace=0.3, **patience)
    assert caught.value.code == "stalled"


def test_a_job_that_is_too_long_for_its_time_is_at_fault(installation: Any, fake_environment: Any) -> None:
    engine = installation.engine()

    def end_of_time(_: object) -> None:
        object.__setattr__(engine.settings, "wall", 0.0)

    with pytest.raises(JobFault, match=r"\(\d+ of 2000 steps\)") as caught:
        engine.train(OnlyName(), fake_environment(), Hyperparameters(**vars(JOB) | {"max_steps": 2000}), 1, end_of_time)
    assert caught.value.code == "timeout"


def test_an_unfinished_last_adapter_is_no_result(train: Train) -> None:
    with pytest.raises(InfraFault) as caught:
        train({"torchrun": "never finishes the last adapter"})
    assert caught.value.code == "prime_rl_failed"


@pytest.mark.parametrize("end", ["hangs at its end", "fails at its end"])
def test_a_finished_last_adapter_counts_whatever_the_end(train: Train, end: str) -> None:
    assert len(train({"rl": end}, drain=0.3, grace=0.3).metrics) == 3


@pytest.mark.parametrize("program", ["leaves an orphan", "ignores SIGTERM"])
def test_nothing_survives_a_run(train: Train, program: str) -> None:
    """The fixture looks for processes; the stub of the GPU is in use while one of them lives."""
    assert len(train({"inference": program}, grace=1.0).metrics) == 3
    train()


def test_the_gpu_is_checked_after_a_run(train: Train, installation: Any, caplog: pytest.LogCaptureFixture) -> None:
    holder = subprocess.Popen(["sleep", "600"])

    def hold(_: object) -> None:
        (installation.bin / "other.pid").write_text(str(holder.pid))

    try:
        assert len(train(on_step=hold).metrics) == 3
        assert "30000 MiB of GPU 0" in caplog.text
        with pytest.raises(InfraFault) as caught:
            installation.engine().train(OnlyName(), None, JOB, 1)
        assert caught.value.code == "gpu_busy"
    finally:
        holder.kill()
        holder.wait()


@pytest.mark.parametrize("fault", [JobFault("reward_raised", "line 3 raised"), InfraFault("environment_lost", "gone")])
def test_a_fault_of_the_environment_ends_the_run(
    train: Train, fake_environment: Any, fault: JobFault | InfraFault
) -> None:
    with pytest.raises(type(fault)) as caught:
        train(environment=fake_environment(fault, from_call=10))
    assert caught.value is fault


def test_what_on_step_raises_ends_the_run(train: Train) -> None:
    def stop(row: dict[str, float]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(on_step=stop)


def test_the_agent_s_code_is_never_among_prime_rl_s_files(train: Train, installation: Any) -> None:
    train(keep_runs=True)
    [folder] = installation.work.iterdir()
    assert {path.name for path in (folder / "trainwright_job").iterdir()} - {"__pycache__"} == {
        "__init__.py",
        "harness.py",
        "rewards.py",
        "taskset.py",
    }
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    assert rows[0] == {"row": 0, "messages": [{"role": "user", "content": "say something"}]}
    assert len(rows) == (JOB.max_steps + 1) * JOB.batch_size // JOB.group_size


def test_bad_jobs_are_refused_before_anything_starts(train: Train, fake_environment: Any) -> None:
    with pytest.raises(JobRejected):
        train(job=Hyperparameters(student="qwen3-0.6b", lora_rank=0))
    with pytest.raises(JobFault) as caught:
        train(environment=fake_environment(count=0))
    assert caught.value.code == "no_rows"
    with pytest.raises(JobFault) as caught:
        train(environment=fake_environment(prompt="ü" * 17_000))
    assert caught.value.code == "unreadable_prompt"


def test_a_missing_installation_is_named(train: Train, installation: Any) -> None:
    (installation.bin / "env-server").unlink()
    with pytest.raises(InfraFault, match="env-server") as caught:
        train()
    assert caught.value.code == "prime_rl_missing"


def test_the_gate_learns_what_the_engine_can_not_take() -> None:
    engine = make_engine(EngineConfig(backend="prime-rl", prime_rl=PrimeRLSettings(gpu=3)))
    assert isinstance(engine, PrimeRL)
    assert engine.settings.gpu == 3
    assert engine.fingerprint == make_engine(EngineConfig(backend="prime-rl")).fingerprint
    assert engine.fingerprint != make_engine(EngineConfig(backend="torch")).fingerprint
    engine.check(JOB)
    for change, words in (
        ({"advantage": "mean_std"}, "mean_std"),
        ({"lora_rank": 0}, "lora_rank = 0"),
        ({"student": "nano-64"}, "can't be trained by prime-rl"),
    ):
        with pytest.raises(JobRejected, match=words):
            engine.check(replace(JOB, **change))


def test_ports_in_use_are_avoided(train: Train) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        first = taken.getsockname()[1]
        assert len(train(first_port=first).metrics) == 3


def test_a_launcher_dies_with_us(installation: Any, tmp_path: Path) -> None:
    """A worker that is killed, as by the kernel for want of memory, leaves nothing behind."""
    engine = installation.engine({"orchestrator": "hangs in step 2", "inference": "leaves an orphan"}, grace=0.5)
    worker = tmp_path / "worker.py"
    worker.write_text(
        textwrap.dedent(
            """
            import importlib.util, sys
            from trainwright.engines.prime_rl import PrimeRL
            from trainwright.engines.prime_rl_settings import PrimeRLSettings
            from pathlib import Path
            spec = importlib.util.spec_from_file_location("conftest", sys.argv[1])
            conftest = importlib.util.module_from_spec(spec)
            sys.modules["conftest"] = conftest
            spec.loader.exec_module(conftest)
            from trainwright.job.hyperparameters import Hyperparameters
            job = Hyperparameters("qwen3-0.6b", max_steps=3, batch_size=8, lora_rank=1, lora_target="attention")
            bin, work, port = Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
            engine = PrimeRL(PrimeRLSettings(bin=bin, work=work, first_port=port, grace=0.5))
            engine.train(None, conftest.FakeEnvironment(), job, 1)
            """
        )
    )
    settings = engine.settings
    arguments = [Path(__file__).with_name("conftest.py"), settings.bin, settings.work, settings.first_port]
    process = subprocess.Popen([sys.executable, worker, *map(str, arguments)])
    try:
        assert eventually(lambda: list(settings.work.glob("*/outputs/run/stub_batch_1")))
        assert eventually(lambda: (settings.bin / "orphan.pid").exists())
        below = descendants(process.pid)
        assert len(below) >= 6
        orphan = int((settings.bin / "orphan.pid").read_text())
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in {*below, orphan}))


def eventually(condition: Callable[[], Any], seconds: float = 120.0) -> Any:
    limit = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < limit:
        time.sleep(0.02)
    return found
