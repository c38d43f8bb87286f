"""The one-dollar smoke test: one real pod, some minutes, and every assumption that only a live run can settle.

It uses the pool's own modules (records, fleet, agent client) in a folder of its own, with `max_usd` as the cap, and
ends by letting the pod delete itself: the one thing that everything else relies on. `docs/runpod.md` lists the
assumptions by the names of the checks.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import httpx

from trainwright.pools.runpod.agent_client import AgentClient, JobStatus, Misbehaved, Refused, Unreachable
from trainwright.pools.runpod.api import NotThere, RunpodApi, RunpodError
from trainwright.pools.runpod.candidates import Candidates
from trainwright.pools.runpod.config import RunpodConfig, api_key, endpoints
from trainwright.pools.runpod.fleet import BootFailed, Fleet, NoRoom, PodLost
from trainwright.pools.runpod.records import PodRow, Records
from trainwright.pools.runpod.results import fetch_artifact

UPLOAD_BYTES, ARTIFACT_BYTES = 16 << 20, 32 << 20
PROBE = f"""
head -c {ARTIFACT_BYTES} /dev/zero > "$TRAINWRIGHT_OUT/artifact"
echo uid=$(id -u)
cat /proc/1/environ > /dev/null 2>&1 && echo environ=readable || echo environ=hidden
command -v bwrap > /dev/null && bwrap --unshare-all --ro-bind / / true 2> /dev/null && echo bwrap=works || echo bwrap=no
unshare -Ur true 2> /dev/null && echo userns=works || echo userns=no
cat /sys/kernel/security/lsm 2> /dev/null | grep -q landlock && echo landlock=listed || echo landlock=not-listed
env | cut -d= -f1 | grep -c -E 'RUNPOD|TOKEN|KEY' | sed 's/^/secrets=/'
"""


@dataclass
class Check:
    """One assumption: whether it held (None: could not be looked at) and what was seen, in words and seconds."""

    name: str
    held: bool | None = None
    seen: str = ""
    seconds: float = 0.0


@dataclass
class Smoke:
    """The checks of one run."""

    checks: list[Check] = field(default_factory=list)

    @asynccontextmanager
    async def check(self, name: str) -> AsyncIterator[Check]:
        """Time one check and print it; what it raises is what was seen."""
        check, began = Check(name), time.monotonic()
        self.checks.append(check)
        try:
            yield check
            check.held = True if check.held is None else check.held
        except (RunpodError, NoRoom, BootFailed, PodLost, Unreachable, Misbehaved, Refused, AssertionError) as error:
            check.held, check.seen = False, str(error) or type(error).__name__
        check.seconds = time.monotonic() - began
        print(f"{'ok  ' if check.held else 'FAIL'} {check.seconds:7.1f} s  {name}: {check.seen}", flush=True)


async def smoke_test(config: RunpodConfig, max_usd: float, report: Path) -> int:
    """Run the checks, write the report, and return 0 when everything held, 1 otherwise."""
    config = config.model_copy(update={"money": config.money.model_copy(update={"max_usd_total": max_usd})})
    base_url, proxy = endpoints(config.base_url, config.proxy_template)
    smoke, spent = Smoke(), 0.0
    with tempfile.TemporaryDirectory(prefix="trainwright-smoke-") as folder:
        async with RunpodApi(base_url, api_key(), config.times.request) as api:
            records = Records(Path(folder) / "pods.sqlite")
            fleet = Fleet(config, records, api, base_url, proxy, Candidates(config))
            try:
                await one_pod(smoke, fleet)
                spent = sum(usd for _, usd in records.spend(time.time()).values())
            finally:
                await fleet.close()
                records.close()
    when = datetime.now(UTC).isoformat(timespec="seconds")
    checks = [asdict(check) for check in smoke.checks]
    report.write_text(json.dumps({"when": when, "base_url": base_url, "usd": spent, "checks": checks}, indent=2) + "\n")
    failed = sum(not check.held for check in smoke.checks)
    print(f"{len(smoke.checks) - failed} of {len(smoke.checks)} held, about ${spent:.2f} spent; written to {report}")
    return 1 if failed else 0


async def one_pod(smoke: Smoke, fleet: Fleet) -> None:
    """Rent one pod, check everything on it, and delete it whatever happens."""
    row: PodRow | None = None
    async with smoke.check("catalog") as check:
        row, candidate = await fleet.intend("training")
        check.seen = f"{candidate.gpu} in {candidate.data_center or 'any'} at ${candidate.usd_per_hour:.2f}/h with disk"
    if row is None:
        return
    try:
        await boot(smoke, fleet, row)
        if row.boot_id:
            await use(smoke, fleet, row)
            await self_deletion(smoke, fleet, row)
    finally:
        if row.ended_at is None:
            await fleet.terminate(row, "the smoke test is over")


async def boot(smoke: Smoke, fleet: Fleet, row: PodRow) -> None:
    """Create the pod, find it in the list, wait for its agent."""
    async with smoke.check("create") as check:
        await fleet.create(row, [])
        check.seen = f"pod {row.pod_id} at ${row.usd_per_hour:.2f}/h"
    if not row.pod_id:
        return
    async with smoke.check("list-after-create") as check:
        asked = time.monotonic()
        while not any(pod.id == row.pod_id for pod in await fleet.listing.pods(time.monotonic())):
            assert time.monotonic() - asked < fleet.times.settle, "not in the list within times.settle"
        check.seen = "the pod is in the list by its name"
    async with smoke.check("boot") as check:
        await fleet.boot(row)
        health = await fleet.agent(row).health()
        check.seen = f"agent healthy, GPUs {list(health.gpus)}, lease {health.lease_seconds:.0f} s"
    async with smoke.check("price") as check:
        pod = await fleet.api.get(row.pod_id)
        check.seen = f"the API says ${pod.usd_per_hour:.3f}/h, we reckon with ${row.usd_per_hour:.3f}/h"
        check.held = 0 < pod.usd_per_hour <= row.usd_per_hour


async def use(smoke: Smoke, fleet: Fleet, row: PodRow) -> None:
    """Run a probing job, try a wrong token, restart the container."""
    agent = fleet.agent(row)
    async with smoke.check("job") as check:
        files = {"probe.sh": PROBE.encode(), "ballast": bytes(UPLOAD_BYTES)}
        await patiently(lambda: agent.upload("smoke", ["/bin/sh", "job/probe.sh"], {}, 120.0, files))
        await agent.start("smoke")
        status = await ended(agent, "smoke", fleet.times.poll)
        log = (await agent.stream("smoke", "log", 4096)).decode(errors="replace").split()
        check.seen = f"{status.ended} {status.exit_code}, gpu_ok={status.gpu_ok}: {' '.join(log)}"
        check.held = status.exit_code == 0 and "environ=hidden" in log and "secrets=0" in log
    async with smoke.check("transfer") as check:
        data = await fetch_artifact(agent, "smoke", await agent.status("smoke"), fleet.times.lost)
        check.seen = f"{UPLOAD_BYTES >> 20} MiB up and {len(data) >> 20} MiB down in pieces through the proxy"
        check.held = len(data) == ARTIFACT_BYTES
    async with smoke.check("token") as check, httpx.AsyncClient(trust_env=False) as http:
        stranger = AgentClient(http, fleet.proxy, row.pod_id, fleet.config.port, "x" * 40, fleet.times.request)
        try:
            await stranger.health()
            check.held, check.seen = False, "a stranger got an answer"
        except Misbehaved as error:
            check.seen = str(error)
    async with smoke.check("restart") as check:
        old = row.boot_id
        await fleet.restart(row)
        check.seen = f"new boot id {row.boot_id[:8]} after {old[:8]}, disk wiped"


async def self_deletion(smoke: Smoke, fleet: Fleet, row: PodRow) -> None:
    """Let the lease lapse and see the pod delete itself with its pod-scoped key."""
    async with smoke.check("self-deletion") as check:
        lease = fleet.times.heartbeat
        await patiently(lambda: fleet.agent(row).renew(lease))
        began = time.monotonic()
        while time.monotonic() - began < lease + fleet.times.lost + 60:
            try:
                status = (await fleet.api.get(row.pod_id)).status
            except NotThere:
                status = "gone"
            if status in {"gone", "TERMINATED"}:
                check.seen = f"{status} {time.monotonic() - began:.0f} s after a lease of {lease:g} s was set"
                fleet.records.end(row, time.time(), "deleted itself")
                return
            await asyncio.sleep(max(1.0, fleet.times.poll))
        check.held, check.seen = False, f"still {status}: the pod-scoped key may not delete its pod; see the pod's log"


async def patiently(call: Callable[[], Awaitable[object]], tries: int = 5) -> None:
    """Make a call that the proxy may fail at first."""
    for number in range(tries):
        try:
            await call()
            return
        except Unreachable:
            if number == tries - 1:
                raise
            await asyncio.sleep(2**number)


async def ended(agent: AgentClient, id: str, poll: float) -> JobStatus:
    """Return a job's status once it has ended."""
    while (status := await agent.status(id)).state != "DONE":
        await asyncio.sleep(poll)
    return status
