"""Why a run of prime-rl failed, from its logs: the job's fault, or ours.

The launcher only says which of its programs failed; the cause is in that program's log. A failure that no line below
explains is ours: it is retried elsewhere and never scored. Messages are those of prime-rl 559b447, vLLM 0.26 and
torch 2.11, and of the issues that report them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from trainwright.errors import InfraFault, JobFault

LAUNCHER = "launcher"


@dataclass(frozen=True)
class Symptom:
    """A text in a log and what it means. `where` limits it to one component's log."""

    pattern: str
    code: str
    meaning: str
    where: str = ""


NO_SIGNAL = Symptom(
    r"consecutive (empty train batches|zero-output batch equivalents)",
    "no_signal",
    "ten steps in a row had no group whose rewards differ, so there was nothing to learn from",
)
TRAINING = r"Starting training loop"
OUT_OF_MEMORY = Symptom(
    r"CUDA out of memory|torch\.OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED",
    "memory",
    "the trainer ran out of GPU memory on the job's batches; use shorter completions or a smaller lora_rank",
    where="trainer",
)

SYMPTOMS = (
    Symptom(r"Requested \d+ GPUs via deployment", "gpus", "prime-rl was not given its GPU twice"),
    Symptom(r"LoRAAdapterNotFoundError", "adapter_lost", "vLLM lost an adapter that it had not loaded yet"),
    Symptom(
        r"Address already in use|address already in use|\[Errno 98\]|EADDRINUSE",
        "port_in_use",
        "a port of the run was taken",
    ),
    Symptom(r"No space left on device", "disk_full", "the disk is full"),
    Symptom(r"Too many open files", "file_handles", "the processes ran out of file handles"),
    Symptom(
        r"No available memory for the cache blocks|Free memory on device .* is less than|CUDA out of memory",
        "gpu_memory",
        "the model server does not fit its share of the GPU",
        where="inference",
    ),
    Symptom(OUT_OF_MEMORY.pattern, "gpu_memory", "the trainer does not fit the GPU", where="trainer"),
    Symptom(
        r"Flash attention \d is only supported|FlashAttention.* only supports|no kernel image is available",
        "attention",
        "the attention kernels do not fit the GPU",
    ),
    Symptom(
        r"CUDA driver version is insufficient|unsatisfied condition: cuda|no CUDA-capable device|"
        r"Found no NVIDIA driver|driver on your system is too old",
        "driver",
        "the GPU's driver is missing or too old",
    ),
    Symptom(
        r"'trainwright-job' not found|No module named 'trainwright_job'|trainwright_job.*defines no",
        "package_missing",
        "prime-rl does not find the job's package",
    ),
    Symptom(
        r"LocalEntryNotFoundError|OfflineModeIsEnabled|couldn't connect to 'https?://huggingface|"
        r"RepositoryNotFoundError",
        "model_missing",
        "the student's weights could not be loaded from the hub or its cache",
    ),
    Symptom(
        r"validation errors? for (RL|Inference|Trainer|Orchestrator|EnvServer)Config|ConfigFileError",
        "config_refused",
        "prime-rl refuses our configuration; is it commit 559b447?",
    ),
    Symptom(r"command not found|: No such file or directory", "program_missing", "a program is missing", LAUNCHER),
)

_FAILED = re.compile(r"(?:Error: )?(.+?) failed with exit code (-?\d+)")
_COMPONENTS = {"Inference": "inference", "Trainer": "trainer", "Orchestrator": "orchestrator"}
_WIDTH = 300


@dataclass(frozen=True)
class Evidence:
    """What is known about a run that ended early.

    `logs` are the ends of the logs by component, `status` is the launcher's exit status, `scored` how many replies we
    scored, `batch_size` how many a step has, and `steps` how many steps were trained.
    """

    logs: Mapping[str, str]
    status: int
    scored: int
    batch_size: int
    steps: int


def diagnose(evidence: Evidence) -> JobFault | InfraFault | None:
    """Return why a run ended early, None when no known symptom is in its logs."""
    logs = evidence.logs
    failed = _failed_component(logs.get(LAUNCHER, ""))
    ordered = sorted(logs, key=lambda component: component != failed)
    for component in ordered:
        text = logs[component]
        if re.search(NO_SIGNAL.pattern, text):
            if evidence.scored >= evidence.batch_size:
                return JobFault(NO_SIGNAL.code, NO_SIGNAL.meaning)
            # no rollout worked, which is not the job's doing
            return InfraFault("no_rollouts", f"only {evidence.scored} replies came to be scored")
        trained = evidence.steps > 0 or re.search(TRAINING, text)
        if component == OUT_OF_MEMORY.where and trained and re.search(OUT_OF_MEMORY.pattern, text):
            return JobFault(OUT_OF_MEMORY.code, OUT_OF_MEMORY.meaning)
        for symptom in SYMPTOMS:
            if symptom.where in ("", component) and (line := _line(symptom.pattern, text)):
                return InfraFault(symptom.code, f"{symptom.meaning} ({component}: {line})")
    return None


def unexplained(evidence: Evidence) -> InfraFault:
    """Return the fault of a run that ended without a known symptom: the last error of the program that failed."""
    failed = _failed_component(evidence.logs.get(LAUNCHER, ""))
    what = f"{failed} failed" if failed else f"the launcher ended with status {evidence.status}"
    return InfraFault("prime_rl_failed", f"{what}: {_cause(evidence.logs.get(failed or LAUNCHER, ''))}")


def _failed_component(text: str) -> str:
    """Return the component that the launcher blames, '' when it blames none."""
    found = [match[1].strip().rpartition(": ")[2] for match in _FAILED.finditer(text)]
    if not found:
        return ""
    return (
        "envs/train/job"
        if "env server" in found[0]
        else next((component for name, component in _COMPONENTS.items() if found[0].endswith(name)), "")
    )


def _line(pattern: str, text: str) -> str:
    """Return the first line that matches, shortened."""
    match = re.search(f"^.*(?:{pattern}).*$", text, re.MULTILINE)
    return match[0].strip()[:_WIDTH] if match else ""


def _cause(text: str) -> str:
    """Return the last line of a log that looks like an error, or its last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\w(Error|Exception)\b|ERROR|CRITICAL", line)]
    return (errors or lines or ["it said nothing"])[-1][:_WIDTH]
