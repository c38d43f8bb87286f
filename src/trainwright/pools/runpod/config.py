"""The settings of the Runpod pool: table `[pool.runpod]` of a run's TOML file.

Prices and times were chosen from Runpod's documents, not from a live run; `docs/runpod.md` lists what to check.
"""

from __future__ import annotations

import os
import re
from typing import Literal

from pydantic import Field, model_validator

from trainwright.errors import ConfigError
from trainwright.section import Section

BASE_URL = "https://api.runpod.io/v2"
PROXY_TEMPLATE = "https://{pod_id}-{port}.proxy.runpod.net"


JOB_COMMAND = ["/opt/trainwright/venv/bin/python", "-P", "-m", "trainwright.pools.runpod.run_job"]


class Gpu(Section):
    """A GPU type that may be rented."""

    id: str = Field(min_length=1)
    """Runpod's identifier, such as `NVIDIA GeForce RTX 4090` (`trainwright pods list --gpus` prints them)."""
    speed: float = Field(default=1.0, gt=0)
    """Jobs an hour relative to the other types; candidates are ordered by price over speed."""
    max_usd_per_hour: float = Field(default=10.0, gt=0)
    """Skip this type above this list price."""


class Money(Section):
    """What may be spent. Leases are granted from this money, so that the caps hold when the controller is dead."""

    max_usd_per_hour: float = Field(default=12.0, gt=0)
    """The sum of the prices of all live pods."""
    max_usd_total: float = Field(default=50.0, gt=0)
    """All pod-seconds of this run folder, ever."""
    disk_usd_per_gb_month: float = Field(default=0.10, ge=0)
    """Container disk, added to the GPU price (Runpod's price page, August 2026)."""


class Times(Section):
    """Every deadline, in seconds."""

    boot: float = Field(default=900.0, gt=0)
    """From create to a healthy agent, image pull included; then the pod is deleted and its candidate banned."""
    restart: float = Field(default=300.0, gt=0)
    """From restart to a healthy agent with a new boot id; then the pod is replaced."""
    lease: float = Field(default=600.0, gt=0, le=3600)
    """A pod deletes itself when no controller has renewed its lease for this long."""
    heartbeat: float = Field(default=20.0, gt=0)
    """Between two renewals."""
    lost: float = Field(default=120.0, gt=0)
    """An unreachable pod is given up after this long, if the API doesn't contradict."""
    idle: float = Field(default=120.0, gt=0)
    """A pod without work is deleted after this long."""
    pod: float = Field(default=12 * 3600.0, gt=0)
    """The absolute deadline of a pod, known to the pod itself and written in its name."""
    job: float = Field(default=3600.0, gt=0)
    """Wall clock of one job; over it is a job fault."""
    evaluation: float = Field(default=900.0, gt=0)
    """Wall clock of one evaluation request."""
    queue: float = Field(default=4 * 3600.0, gt=0)
    """A job that no pod took for this long is an infrastructure fault."""
    poll: float = Field(default=5.0, gt=0)
    """Between two looks at a running job."""
    listing: float = Field(default=15.0, gt=0)
    """The account's list of pods is read at most this often and shared by everything that asks."""
    reaper: float = Field(default=60.0, gt=0)
    """Between two sweeps for pods that nobody owns."""
    settle: float = Field(default=120.0, gt=0)
    """A create whose reply was lost may still show up in the list for this long."""
    request: float = Field(default=30.0, gt=0, le=60)
    """One request to the API or to a pod, from first to last byte."""
    backoff: float = Field(default=5.0, gt=0)
    """First wait after a failed request or a refused candidate; doubled, jittered, at most 60 times as long."""
    close: float = Field(default=60.0, gt=0)
    """How long `close` insists on deleting pods before it leaves them to their leases, and says so."""


class RunpodConfig(Section):
    """The Runpod pool."""

    image: str = Field(min_length=1)
    """The image of `docker/`, by digest."""
    job_command: list[str] = Field(default=JOB_COMMAND, min_length=1)
    """What runs a job in the image: it reads `$TRAINWRIGHT_JOB` and writes `$TRAINWRIGHT_OUT` (see docs/runpod.md)."""
    job_env: dict[str, str] = {}
    """Environment of that command; everything else is scrubbed."""
    services: dict[str, list[str]] = {}
    """For each student, the command that serves it on an evaluation pod, such as `vllm serve ... --enable-lora`."""
    evaluation_command: list[str] = ["python3", "-I", "-S", "/opt/trainwright/pod_evaluate.py"]
    """What answers one evaluation request on such a pod."""
    gpus: list[Gpu] = Field(min_length=1)
    """GPU types that may be rented."""
    clouds: list[Literal["SECURE", "COMMUNITY"]] = ["SECURE"]
    """On community hosts the host's owner can read everything."""
    data_centers: list[str] = []
    """Data centres that may be used; empty for all."""
    min_cuda: str = Field(default="12.8", pattern=r"^\d+\.\d+$")
    """Oldest CUDA version of the host's driver."""
    max_pods: int = Field(default=16, ge=1, le=64)
    """Pods at any time, evaluation pods included."""
    evaluation_pods: int = Field(default=1, ge=0, le=8)
    """Of these, at most so many for each student's evaluation."""
    disk_gb: int = Field(default=60, ge=5, le=2000)
    """Container disk; it is wiped at every restart."""
    port: int = Field(default=8900, ge=1024, le=65535)
    """The agent's port in the pod."""
    job_uid: str = Field(default="10001", pattern=r"^(\d+|same)$")
    """User of the jobs in the image; `same` runs them as the agent, which protects nothing."""
    require_gpu: bool = True
    """Refuse a pod that shows no GPU."""
    max_artifact_bytes: int = Field(default=256 << 20, ge=1)
    """Largest trained adapter that is read back."""
    job_retries: int = Field(default=2, ge=0, le=10)
    """How often a job whose pod was lost is run elsewhere before it is an infrastructure fault."""
    faults_per_pod: int = Field(default=3, ge=1)
    """So many faults of different jobs on one pod replace it."""
    boot_failures: int = Field(default=6, ge=1)
    """So many pods in a row that don't boot, or can't run the job command, stop the run: then it's the image."""
    keep_results: int = Field(default=128, ge=0)
    """Trained weights kept for a run that is resumed; older ones are deleted."""
    money: Money = Money()
    times: Times = Times()
    base_url: str = BASE_URL
    """Root of the REST API; `TRAINWRIGHT_RUNPOD_BASE_URL` overrides it."""
    proxy_template: str = PROXY_TEMPLATE
    """How a pod's port is reached; `TRAINWRIGHT_RUNPOD_PROXY_TEMPLATE` overrides it."""

    @model_validator(mode="after")
    def _times_fit(self) -> RunpodConfig:
        if self.times.heartbeat * 3 > self.times.lease:
            raise ValueError("times.lease must be at least three heartbeats")
        longest = max(self.times.job, self.times.evaluation)
        if self.times.boot + longest + 2 * self.times.lost > self.times.pod:
            raise ValueError("times.pod must have room for one boot and one job")
        if self.evaluation_pods * len(self.services) >= self.max_pods:
            raise ValueError("max_pods must leave room for training beside the evaluation pods")
        return self


def endpoints(base_url: str = BASE_URL, proxy_template: str = PROXY_TEMPLATE) -> tuple[str, str]:
    """Return base URL and proxy template with the environment's overrides; raise `ConfigError`."""
    base = os.environ.get("TRAINWRIGHT_RUNPOD_BASE_URL", base_url).rstrip("/")
    proxy = os.environ.get("TRAINWRIGHT_RUNPOD_PROXY_TEMPLATE", proxy_template)
    if not re.fullmatch(r"https?://[^\s/]+(/\S*)?", base):
        raise ConfigError(f"Runpod's base URL {base!r} is not an http(s) address")
    if "{pod_id}" not in proxy or not re.fullmatch(r"https?://\S+", proxy):
        raise ConfigError(f"the proxy template {proxy!r} must be an http(s) address that contains {{pod_id}}")
    return base, proxy


def api_key() -> str:
    """Return `RUNPOD_API_KEY`; raise `ConfigError`."""
    key = os.environ.get("RUNPOD_API_KEY", "").strip()
    if not key:
        raise ConfigError("RUNPOD_API_KEY is not set; make a key in the Runpod console under Settings, API keys")
    if not re.fullmatch(r"[\x21-\x7e]{8,256}", key):
        raise ConfigError("RUNPOD_API_KEY contains blanks or unusual characters; copy it again")
    return key
