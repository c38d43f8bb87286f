"""Whose fault a failed run is, by what the logs say."""

from __future__ import annotations

import re

import pytest

from trainwright.engines.prime_rl_failures import SYMPTOMS, Evidence, diagnose, unexplained
from trainwright.errors import InfraFault, JobFault


def evidence(component: str, text: str, *, steps: int = 0, scored: int = 100, launcher: str = "") -> Evidence:
    logs = {"trainer": "", "orchestrator": "", "inference": "", "envs/train/job": "", "launcher": launcher}
    logs[component] += f"INFO all is well\n{text}\nINFO goodbye\n"
    return Evidence(logs, status=1, scored=scored, batch_size=64, steps=steps)


TEXTS = [
    ("launcher", "ValueError: Requested 2 GPUs via deployment settings, but only 1 physical GPU(s) are", "gpus"),
    ("inference", "LoRAAdapterNotFoundError: Loading lora r16-a32.0 failed", "adapter_lost"),
    ("inference", "OSError: [Errno 98] Address already in use", "port_in_use"),
    ("orchestrator", "zmq.error.ZMQError: Address already in use (addr='tcp://*:5555')", "port_in_use"),
    ("trainer", "OSError: [Errno 28] No space left on device: '/runs/broadcasts/step_7'", "disk_full"),
    ("envs/train/job", "OSError: [Errno 24] Too many open files", "file_handles"),
    ("inference", "ValueError: No available memory for the cache blocks.", "gpu_memory"),
    ("inference", "ValueError: Free memory on device (3.1/47.5 GiB) on startup is less than desired", "gpu_memory"),
    ("inference", "torch.OutOfMemoryError: CUDA out of memory.", "gpu_memory"),
    ("trainer", "torch.OutOfMemoryError: CUDA out of memory.", "gpu_memory"),
    ("trainer", "ValueError: Flash attention 3 is only supported if the flash_attn_3 package", "attention"),
    ("trainer", "RuntimeError: FlashAttention only supports Ampere GPUs or newer.", "attention"),
    ("trainer", "RuntimeError: CUDA error: no kernel image is available for execution", "attention"),
    ("inference", "RuntimeError: The NVIDIA driver on your system is too old", "driver"),
    ("trainer", "RuntimeError: Found no NVIDIA driver on your system.", "driver"),
    ("orchestrator", "ModuleNotFoundError: taskset 'trainwright-job' not found (tried", "package_missing"),
    ("launcher", "OSError: We couldn't connect to 'https://huggingface.co' to load the files", "model_missing"),
    ("launcher", "ConfigFileError: Failed to validate config: 1 validation error for RLConfig", "config_refused"),
    ("launcher", "rl: No such file or directory", "program_missing"),
]


@pytest.mark.parametrize(("component", "text", "code"), TEXTS)
def test_known_symptoms_of_the_machinery(component: str, text: str, code: str) -> None:
    fault = diagnose(evidence(component, text))
    assert isinstance(fault, InfraFault)
    assert fault.code == code
    assert text[:60] in fault.message


def test_every_symptom_is_tested() -> None:
    for symptom in SYMPTOMS:
        assert any(re.search(symptom.pattern, text) and symptom.where in ("", where) for where, text, _ in TEXTS), (
            symptom
        )


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: 10 consecutive empty train batches — check algorithm credit and task difficulty.",
        "RuntimeError: 10 consecutive zero-output batch equivalents — check the curriculum admission policy",
    ],
)
def test_no_signal_is_the_job_s_fault_only_when_rollouts_were_scored(text: str) -> None:
    fault = diagnose(evidence("orchestrator", text))
    assert isinstance(fault, JobFault)
    assert fault.code == "no_signal"
    fault = diagnose(evidence("orchestrator", text, scored=63))
    assert isinstance(fault, InfraFault)
    assert fault.code == "no_rollouts"


def test_memory_is_the_job_s_fault_once_training_has_begun() -> None:
    out = "torch.OutOfMemoryError: CUDA out of memory."
    begun = f"INFO Starting training loop (max_steps=3)\n{out}"
    for given in (evidence("trainer", begun), evidence("trainer", out, steps=1)):
        fault = diagnose(given)
        assert isinstance(fault, JobFault)
        assert fault.code == "memory"
    assert isinstance(diagnose(evidence("inference", out, steps=1)), InfraFault)


def test_the_program_that_failed_is_believed_first() -> None:
    blamed = "ERROR Error: Inference failed with exit code 1"
    logs = evidence("inference", "OSError: [Errno 98] Address already in use", launcher=blamed).logs
    both = {**logs, "trainer": "OSError: [Errno 28] No space left on device"}
    fault = diagnose(Evidence(both, 1, 0, 64, 0))
    assert isinstance(fault, InfraFault)
    assert fault.code == "port_in_use"


@pytest.mark.parametrize(
    ("blamed", "component"),
    [
        ("Trainer failed with exit code -9", "trainer"),
        ("Orchestrator failed with exit code 3", "orchestrator"),
        ("Train env server job failed with exit code 4", "envs/train/job"),
    ],
)
def test_an_unknown_failure_is_ours_and_says_what_is_known(blamed: str, component: str) -> None:
    given = evidence(component, "Traceback:\nAssertionError: strange", launcher=f"00:00 | ERROR | Error: {blamed}")
    assert diagnose(given) is None
    fault = unexplained(given)
    assert fault.message == f"{component} failed: AssertionError: strange"


def test_an_unknown_failure_without_any_word_still_has_a_message() -> None:
    given = Evidence({"launcher": ""}, 137, 0, 64, 0)
    assert diagnose(given) is None
    assert unexplained(given).message == "the launcher ended with status 137: it said nothing"
