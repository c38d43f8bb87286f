"""What the engine needs to know about an NVIDIA GPU, from `nvidia-smi`."""

from __future__ import annotations

import subprocess
import time
from dataclasses import dataclass
from typing import Literal

from trainwright.errors import InfraFault

FREE_MIB = 1024
"""Memory in use below which a GPU counts as free: a context of the driver may stay, a model doesn't."""

Attention = Literal["flash_attention_2", "flash_attention_3", "flash_attention_4"]

_FIELDS = "index,name,compute_cap,memory.total,memory.used"
_SECONDS = 30.0


@dataclass(frozen=True)
class Gpu:
    """One card: its index, name, compute capability, and memory in MiB."""

    index: int
    name: str
    capability: tuple[int, int]
    total_mib: int
    used_mib: int

    @property
    def attention(self) -> Attention:
        """Return the FlashAttention that has kernels for this card; raise `InfraFault` when none has.

        The choice of prime-rl 559b447 (`resolve_auto_attn`) for SM 9.0 and 10.0, the second version for the rest.
        """
        major, minor = self.capability
        if major < 8:
            raise InfraFault("gpu_too_old", f"{self.name} has compute capability {major}.{minor}; 8.0 is needed")
        if major == 9:
            return "flash_attention_3"
        return "flash_attention_4" if (major, minor) == (10, 0) else "flash_attention_2"


def query(index: int) -> Gpu:
    """Return one card's state now; raise `InfraFault` when there is none or the driver doesn't answer."""
    command = ["nvidia-smi", f"--id={index}", f"--query-gpu={_FIELDS}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InfraFault("no_gpu", f"nvidia-smi does not answer: {error}") from None
    try:
        number, name, capability, total, used = (part.strip() for part in done.stdout.strip().split(","))
        major, minor = capability.split(".")
        return Gpu(int(number), name, (int(major), int(minor)), int(total), int(used))
    except ValueError:
        said = (done.stdout + done.stderr).strip()[:200]
        raise InfraFault("no_gpu", f"nvidia-smi names no GPU {index}: {said}") from None


def wait_until_free(index: int, seconds: float) -> Gpu:
    """Return the card once nothing holds its memory; raise `InfraFault` when something still does after a while."""
    limit = time.monotonic() + seconds
    while (gpu := query(index)).used_mib > FREE_MIB:
        if time.monotonic() >= limit:
            raise InfraFault("gpu_busy", f"{gpu.used_mib} MiB of GPU {index} ({gpu.name}) are in use by someone else")
        time.sleep(min(1.0, seconds))
    return gpu
