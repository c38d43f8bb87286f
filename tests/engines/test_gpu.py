"""What nvidia-smi says, and what it can't."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainwright.engines import gpu
from trainwright.engines.gpu import Gpu
from trainwright.errors import InfraFault


@pytest.fixture
def says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a nvidia-smi on the path that prints a file."""
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat {tmp_path}/output\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path / "output"


def test_a_card_is_described(says: Path) -> None:
    says.write_text("1, NVIDIA H100 80GB HBM3, 9.0, 81559, 4\n")
    assert gpu.query(1) == Gpu(1, "NVIDIA H100 80GB HBM3", (9, 0), 81559, 4)
    assert gpu.wait_until_free(1, 0).attention == "flash_attention_3"


@pytest.mark.parametrize("output", ["", "No devices were found\n", "0, X, N/A, 1, 2\n", "0, X, 9.0, 81559\n"])
def test_anything_else_is_a_fault_of_the_machine(says: Path, output: str) -> None:
    says.write_text(output)
    with pytest.raises(InfraFault) as caught:
        gpu.query(0)
    assert caught.value.code == "no_gpu"


def test_no_program_is_a_fault_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InfraFault, match="nvidia-smi"):
        gpu.query(0)


def test_a_card_in_use_is_waited_for_and_then_named(says: Path) -> None:
    says.write_text("0, NVIDIA L40S, 8.9, 46068, 20000\n")
    with pytest.raises(InfraFault, match="20000 MiB of GPU 0") as caught:
        gpu.wait_until_free(0, 0.05)
    assert caught.value.code == "gpu_busy"


@pytest.mark.parametrize(
    ("capability", "attention"),
    [((8, 0), 2), ((8, 6), 2), ((8, 9), 2), ((9, 0), 3), ((10, 0), 4), ((10, 3), 2), ((12, 0), 2)],
)
def test_attention_is_chosen_by_card(capability: tuple[int, int], attention: int) -> None:
    assert Gpu(0, "card", capability, 1, 1).attention == f"flash_attention_{attention}"


def test_a_card_without_kernels_is_refused() -> None:
    with pytest.raises(InfraFault) as caught:
        _ = Gpu(0, "Tesla T4", (7, 5), 1, 1).attention
    assert caught.value.code == "gpu_too_old"
