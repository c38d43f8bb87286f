"""The `prime-rl` engine: LoRA training of Qwen3 students on one GPU, by prime-rl at commit 559b447.

prime-rl is a set of programs of an installation of its own (Python 3.12, vLLM), driven by one configuration file.
The engine writes that file (`prime_rl_config`) and a verifiers package with the job's rows (`job_package`), starts the
launcher, answers its questions for rewards (`prime_rl_rewards`), watches its folder (`prime_rl_run`), says whose fault
a failure is (`prime_rl_failures`), and brings back the last adapter, checked (`students/adapter`). docs/prime-rl.md
says what of this has run where.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from trainwright.cache import content_hash
from trainwright.config import EngineConfig
from trainwright.engines import gpu, job_package, prime_rl_config
from trainwright.engines.engine import StepMetrics, Training
from trainwright.engines.prime_rl_config import (
    COMMIT,
    MAX_SEQ_LEN,
    Place,
    check_supported,
    rl_config,
    sequence_length,
    server_config,
    toml,
)
from trainwright.engines.prime_rl_failures import LAUNCHER, Evidence, diagnose, unexplained
from trainwright.engines.prime_rl_rewards import RewardServer
from trainwright.engines.prime_rl_run import COMPONENTS, RunFolder, tail
from trainwright.engines.prime_rl_settings import PrimeRLSettings
from trainwright.engines.process_tree import LEFTOVERS, ProcessTree
from trainwright.engines.scratch import scratch
from trainwright.environment.environment import Environment, Row
from trainwright.errors import InfraFault, JobFault
from trainwright.job.hyperparameters import Hyperparameters
from trainwright.seeds import derive_seed
from trainwright.students.adapter import Adapter, AdapterError, adapter_of_folder
from trainwright.students.architecture import QWEN3
from trainwright.students.student import Student

log = logging.getLogger(__name__)

PROGRAMS = ("rl", "inference", "orchestrator", "env-server", "torchrun")
MAX_ROWS = 8192
"""Rows taken from a job at most; prime-rl starts over with them, as with any finite taskset."""

_RUN = "run"
_PORT_BLOCK, _PORT_TRIES = 4, 32

_PASSED_ON: tuple[str, ...] = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ", "TMPDIR", "XDG_CACHE_HOME")
_PASSED_ON += ("HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "CUDA_HOME", "TRITON_CACHE_DIR", "VLLM_CACHE_ROOT")
_PASSED_ON += ("LD_LIBRARY_PATH", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "TORCHINDUCTOR_CACHE_DIR")
"""The variables of our environment that prime-rl's programs get: no key of anyone's."""


def prime_rl(config: EngineConfig) -> PrimeRL:
    """Return the engine of a run's configuration."""
    return PrimeRL(config.prime_rl)


class PrimeRL:
    """Trains one job at a time; several engines on one machine need a GPU and ports each."""

    loads_student = True

    def __init__(self, settings: PrimeRLSettings | None = None) -> None:
        self.settings = settings or PrimeRLSettings()
        self.fingerprint = content_hash("prime-rl", COMMIT, prime_rl_config)

    def check(self, hyperparameters: Hyperparameters) -> None:
        """Refuse what prime-rl can't take: students it doesn't know, `lora_rank = 0`, `advantage = "mean_std"`."""
        check_supported(hyperparameters)

    def train(
        self,
        student: Student,
        environment: Environment,
        hyperparameters: Hyperparameters,
        seed: int,
        on_step: Callable[[StepMetrics], None] | None = None,
    ) -> Training:
        """See `Engine.train`. Of the student only the name is used: prime-rl loads the weights itself.

        The same seed does not give the same weights: rollouts and updates overlap. Raises `JobRejected` for
        hyperparameters that prime-rl can't take, `JobFault` with `no_rows`, `unreadable_prompt`, `no_signal`,
        `non_finite`, `memory`, `timeout` and whatever the environment raises, and `InfraFault` for everything else.
        """
        settings, hp = self.settings, hyperparameters
        check_supported(hp)
        for program in PROGRAMS:
            if not os.access(settings.bin / program, os.X_OK):
                raise InfraFault("prime_rl_missing", f"there is no program {program} in {settings.bin}")
        card = gpu.wait_until_free(settings.gpu, settings.gpu_free)
        rows = _rows(environment, hp)
        length = _sequence_length(rows, hp)
        with _scratch(settings) as (folder, short):
            place = Place(
                output_dir=folder / "outputs",
                run_name=_RUN,
                rows=folder / "rows.jsonl",
                socket=short / "rewards",
                first_port=_free_ports(settings.first_port),
                attention=card.attention,
                memory_fraction=settings.memory_fraction,
                own_server=settings.sharing == "own_server",
            )
            _write(folder, place, rows, hp, length, seed)
            run = RunFolder(place.output_dir / _RUN, hp.max_steps)
            metrics: list[StepMetrics] = []
            with RewardServer(environment, place.socket) as rewards:
                watch = _Watch(settings, run, rewards, hp, folder, metrics, on_step)
                try:
                    with _processes(settings, folder, place.own_server) as trees:
                        watch.until_trained(trees)
                finally:
                    self._check_gpu()
            adapter = _collect(run, hp)
        return Training(adapter.to_bytes(hp.student), metrics)

    def _check_gpu(self) -> None:
        """Complain when the GPU is not free again; the next run would refuse to start on it."""
        try:
            gpu.wait_until_free(self.settings.gpu, self.settings.gpu_free)
        except InfraFault as fault:
            log.warning("after a run: %s", fault)


class _Watch:
    """Looks at a run until it is trained, and raises the fault when it isn't going to be."""

    def __init__(
        self,
        settings: PrimeRLSettings,
        run: RunFolder,
        rewards: RewardServer,
        hyperparameters: Hyperparameters,
        folder: Path,
        metrics: list[StepMetrics],
        on_step: Callable[[StepMetrics], None] | None,
    ) -> None:
        self._settings, self._run, self._rewards, self._hp = settings, run, rewards, hyperparameters
        self._folder, self._metrics, self._on_step = folder, metrics, on_step

    def until_trained(self, trees: list[ProcessTree]) -> None:
        """Return once the last adapter is complete and the programs have ended, or have had their time to.

        The launcher is the first tree. A complete last adapter counts, whatever the launcher's end was like: it is
        known to hang in its shutdown.
        """
        settings, started = self._settings, time.monotonic()
        stepped, complete = started, 0.0
        while True:
            statuses = [tree.poll() for tree in trees]
            steps = self._run.new_steps()  # after the poll: nothing is written later than a launcher's end
            for row in steps:
                self._metrics.append(row)
                if self._on_step is not None:
                    self._on_step(row)
            now = time.monotonic()
            stepped = now if steps else stepped
            self._check_faults()
            if self._run.adapter() is not None:
                complete = complete or now
                if statuses[0] is not None or now - complete > settings.drain:
                    return
            elif any(status is not None for status in statuses):
                raise self._failure(next(status for status in statuses if status is not None))
            elif now - started > settings.wall:
                raise self._overdue()
            elif now - stepped > (settings.step if self._metrics else settings.first_step) or self._silent():
                raise self._stalled()
            time.sleep(settings.poll)

    def _check_faults(self) -> None:
        """Raise the fault of the job that rewards or metrics show before the run ends by itself."""
        if self._rewards.fault is not None:
            raise self._rewards.fault
        if step := self._run.not_finite():
            raise JobFault("non_finite", f"step {step}: the loss or the gradient is not finite")

    def _silent(self) -> bool:
        return bool(self._metrics) and time.time() - self._run.last_change() > self._settings.silence

    def _failure(self, status: int) -> JobFault | InfraFault:
        evidence = self._evidence(status)
        return diagnose(evidence) or unexplained(evidence)

    def _stalled(self) -> JobFault | InfraFault:
        """A run without progress: a known symptom in a log, else nobody knows why."""
        where = f"after step {len(self._metrics)}" if self._metrics else "before the first step"
        return diagnose(self._evidence(0)) or InfraFault("stalled", f"prime-rl made no progress {where}")

    def _overdue(self) -> JobFault | InfraFault:
        """A run that is over its time although it moves, which the job's size decides."""
        if not self._metrics:
            return self._stalled()
        done = f"{len(self._metrics)} of {self._hp.max_steps} steps"
        return JobFault("timeout", f"the job did not end within {self._settings.wall:g} seconds ({done})")

    def _evidence(self, status: int) -> Evidence:
        logs = {component: self._run.log(component) for component in COMPONENTS}
        logs[LAUNCHER] = tail(self._folder / f"{LAUNCHER}.log")
        logs["inference"] += tail(self._folder / "inference.log")
        return Evidence(logs, status, self._rewards.scored, self._hp.batch_size, len(self._metrics))


@contextlib.contextmanager
def _scratch(settings: PrimeRLSettings) -> Iterator[tuple[Path, Path]]:
    """Make the folder of one run, and one with a short name for the socket, whose path may have 107 bytes at most."""
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(scratch(settings.work.resolve(), "run", keep=settings.keep_runs))
            short = stack.enter_context(scratch(Path(tempfile.gettempdir()), "trainwright-rewards"))
        except OSError as error:
            raise InfraFault("work_folder", f"{error.filename} can't be made: {error.strerror}") from None
        yield folder, short


@contextlib.contextmanager
def _processes(settings: PrimeRLSettings, folder: Path, own_server: bool) -> Iterator[list[ProcessTree]]:
    """Start the launcher, and before it the model server where that is ours; end them, whatever happens."""
    environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    environment["PATH"] = f"{settings.bin}{os.pathsep}{environment.get('PATH', os.defpath)}"
    environment["PYTHONPATH"] = str(folder)
    environment["PYTHONNOUSERSITE"] = environment["DO_NOT_TRACK"] = environment["VLLM_NO_USAGE_STATS"] = "1"
    environment["WANDB_MODE"] = "disabled"
    environment["CUDA_VISIBLE_DEVICES"] = str(settings.gpu) if own_server else f"{settings.gpu},{settings.gpu}"
    trees: list[ProcessTree] = []

    def start(program: str, configuration: str, name: str) -> None:
        command = [str(settings.bin / program), "@", str(folder / configuration)]
        output = folder / f"{name}.log"
        tree = ProcessTree(command, environment=environment, folder=folder, log=output, grace_seconds=settings.grace)
        trees.insert(0, tree)

    try:
        if own_server:
            start("inference", "inference.toml", "inference")
        start("rl", "rl.toml", LAUNCHER)
        yield trees
    finally:
        if LEFTOVERS in [tree.stop() for tree in trees]:
            log.warning("a process of a run could not be killed; the GPU may stay in use")


def _rows(environment: Environment, hp: Hyperparameters) -> list[Row]:
    """Return the rows that the steps need and a step's more, since failed rollouts are replaced."""
    groups = (hp.max_steps + 1) * hp.batch_size // hp.group_size
    rows = environment.rows(min(groups, MAX_ROWS))
    if not rows:
        raise JobFault("no_rows", "the taskset has no rows")
    return rows


def _sequence_length(rows: list[Row], hp: Hyperparameters) -> int:
    sizes = {row.index: sum(len(message["content"].encode()) for message in row.messages) for row in rows}
    longest = max(sizes, key=lambda index: sizes[index])
    length = sequence_length(sizes[longest], hp.max_completion_tokens)
    if length > MAX_SEQ_LEN:
        limit = f"prompt and completion must fit into {MAX_SEQ_LEN} tokens"
        raise JobFault("unreadable_prompt", f"row {longest} has a prompt of {sizes[longest]} bytes; {limit}")
    return length


def _write(folder: Path, place: Place, rows: list[Row], hp: Hyperparameters, length: int, seed: int) -> None:
    """Write the package, the rows and the configuration."""
    source = Path(job_package.__path__[0])
    shutil.copytree(source, folder / "trainwright_job", ignore=shutil.ignore_patterns("__pycache__"))
    with place.rows.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps({"row": row.index, "messages": row.messages}) + "\n")
    model_seed = derive_seed(seed, "sample")
    (folder / "rl.toml").write_text(toml(rl_config(hp, place, length, model_seed)))
    if place.own_server:
        (folder / "inference.toml").write_text(toml(server_config(hp, place, length, model_seed)))


def _collect(run: RunFolder, hp: Hyperparameters) -> Adapter:
    """Return the adapter of the last step, checked; raise the fault when it can't be used."""
    folder = run.adapter()
    if folder is None:
        raise InfraFault("no_adapter", "the adapter of the last step is gone")
    try:
        adapter = adapter_of_folder(folder, QWEN3[hp.student])
    except AdapterError as error:
        if error.code in ("not_finite", "norm"):
            raise JobFault("non_finite", f"the trained weights are useless: {error.message}") from None
        if error.code == "zero":
            raise JobFault("no_signal", "training changed nothing: the adapter is zero") from None
        raise InfraFault("bad_adapter", str(error)) from None
    asked = (hp.lora_rank, hp.lora_alpha, hp.lora_target)
    if (adapter.rank, adapter.alpha, adapter.target) != asked:
        raise InfraFault("bad_adapter", f"the adapter is not the one that was asked for: {adapter.rank}, {asked}")
    return adapter


def _free_ports(first: int) -> int:
    """Return the first of four neighbouring ports that nobody listens on, from `first` upwards."""
    for start in range(first, first + _PORT_TRIES * _PORT_BLOCK, _PORT_BLOCK):
        if all(_is_free(port) for port in range(start, start + _PORT_BLOCK)):
            return start
    raise InfraFault("port_in_use", f"no four neighbouring ports are free from {first} upwards")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
