"""The settings of the `prime-rl` engine: table `[engine.prime_rl]` of a run's TOML file."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from trainwright.section import Section


class PrimeRLSettings(Section):
    """Where prime-rl is and how patient we are with it; times are seconds."""

    bin: Path = Path("/app/.venv/bin")
    """The folder of its programs; the default is that of upstream's image."""
    work: Path = Path("/tmp/trainwright-prime-rl")
    """Where runs are written; a run's folder is removed after it, one that a killed engine left before the next."""
    gpu: int = Field(0, ge=0)
    """Index of the GPU, as `nvidia-smi` counts."""
    sharing: Literal["listed_twice", "own_server"] = "listed_twice"
    """How trainer and model server share the GPU: the launcher starts both and is told of the card twice
    (`CUDA_VISIBLE_DEVICES=0,0`), or we start the model server and the launcher only the trainer."""
    memory_fraction: float = Field(0.4, gt=0, lt=1)
    """Share of the card's memory that the model server takes."""
    first_port: int = Field(18000, ge=1024, le=65000)
    """Four neighbouring free ports are looked for from here upwards."""
    wall: float = Field(3300.0, gt=0)
    """The whole run; in a pool less than the pool's limit of a job, which knows nothing of whose fault it is."""
    first_step: float = Field(1800.0, gt=0)
    """Loading, compiling, and the first step."""
    step: float = Field(900.0, gt=0)
    """Between two steps."""
    silence: float = Field(300.0, gt=0)
    """Without a change of any log or metric, after the first step: loading and compiling may be silent for long."""
    drain: float = Field(60.0, ge=0)
    """From the last adapter's completion to the launcher's end; then it is stopped, and the run counts."""
    grace: float = Field(75.0, ge=0)
    """From SIGTERM to SIGKILL; the launcher gives its own programs 60."""
    gpu_free: float = Field(60.0, ge=0)
    """Until the GPU's memory is free, before a run and after it."""
    poll: float = Field(1.0, gt=0)
    """Between two looks at a run."""
    keep_runs: bool = False
    """Leave the run's folder for a look at it."""
