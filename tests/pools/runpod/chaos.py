"""Chaos: seeded scenarios of faults, kills and caps, run with real controller processes against the fake, and judged.

A scenario draws its jobs, faults, kills and caps from its seed. Times are small (a lease of ten minutes is three
seconds here), so "a minute" in the invariants is `MINUTE` seconds. The order in which pods meet faults still depends on
the machine's scheduling: a seed fixes what goes wrong, not every interleaving.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import multiprocessing
import random
import shutil
import sqlite3
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import controller
from controller import BAD, HASTY, METRICS, REASONS, REFUSED, SCALE, Plan, settings, weights_of
from fake_runpod import ACCOUNT_KEY, FakePod, FakeRunpod, Fault

from trainwright.pools.runpod.api import RunpodApi
from trainwright.pools.runpod.reaper import sweep
from trainwright.pools.runpod.records import read_spend

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["controller"])
LOCK = threading.Lock()  # starting a process polls all others, and an exit code can be read only once
GPUS = {"NVIDIA GeForce RTX 4090": 36.0 / SCALE, "NVIDIA L40S": 45.0 / SCALE}  # a cent a second and a little more
MINUTE = 2.0 * SCALE
SLACK = 10.0 * SCALE
LIMIT = 90.0 * SCALE
MAX_GROWTH_KB = 100_000
NO_AGENT = {"never_boots", "pull_failure", "hang", "slow_boot", "exited", "boot_loop"}

CREATE = ["no_capacity", "no_capacity_500", "rule", "forbidden", "error", "drop_request", "drop_reply"]
CREATE += ["created_but_502", "duplicate", "rate_limit", "dearer"]
API = ["rate_limit", "drop", "nonsense", "redirect", "error"]
POD = ["slow_boot", "never_boots", "pull_failure", "boot_loop", "vanish", "restart", "hang", "server_hang"]
POD += ["server_crash", "exited", "no_gpu", "gpu_changes", "clock_ahead", "clock_behind"]
PROXY = ["502", "524", "drop", "redirect", "nonsense", "huge", "slow_loris"]
PIECES = ["truncate", "forge", "huge", "slow_loris", "redirect"]
CATEGORIES = ["any", "any", "health", "lease", "declare", "files", "start", "status", "metrics", "wipe"]


@dataclass
class Scenario:
    """What a seed stands for. `kills`: write number and whether after the commit, one controller life each.

    A `poor` scenario has a cap that its jobs exceed, and its only controller is killed once so much is spent: what the
    pods cost from then on was granted before.
    """

    seed: int
    jobs: dict[str, tuple[str, str]]
    faults: list[Fault]
    kills: list[tuple[int, bool]]
    rival: str = ""
    abandoned: bool = False
    cap: float = 1000.0
    balance: float = 1e9
    idle: float = HASTY["idle"]
    poor: float = 0.0

    @classmethod
    def draw(cls, seed: int) -> Scenario:
        """Return the scenario of a seed."""
        draw = random.Random(f"chaos {seed}")
        jobs = {}
        for number in range(draw.randint(3, 7)):
            kind = draw.choice(list(BAD)) if draw.random() < 0.3 else f"{draw.uniform(0.02, 0.6):.2f}"
            jobs[f"train-{seed}-{number % 2}-{number}"] = (f"s{seed}j{number}", kind)
        scenario = cls(seed, jobs, [fault(draw) for _ in range(draw.randint(1, 4))], [])
        if draw.random() < 0.5:
            scenario.kills = [(draw.randint(2, 60), draw.random() < 0.5) for _ in range(draw.randint(1, 3))]
        scenario.abandoned = bool(scenario.kills) and draw.random() < 0.2
        scenario.rival = draw.choice(["", "", "", "same folder", "other folder"])
        if draw.random() < 0.2:
            scenario.cap = draw.uniform(0.1, 0.5)
        if draw.random() < 0.1:
            scenario.balance = draw.uniform(0.02, 0.1)
        if draw.random() < 0.2:
            scenario.idle = 2.0 * SCALE
        if draw.random() < 0.1:
            scenario.impoverish(draw)
        return scenario

    def impoverish(self, draw: random.Random) -> None:
        """Make the scenario a poor one."""
        self.jobs = {key: (name, f"{SCALE * draw.uniform(1.5, 2.5):.2f}") for key, (name, _) in self.jobs.items()}
        self.faults, self.kills, self.rival, self.abandoned = [], [(10**6, False)], "", True
        self.cap, self.balance = draw.uniform(0.15, 0.3), 1e9
        self.poor = self.cap * draw.uniform(0.4, 0.8)


def fault(draw: random.Random) -> Fault:
    """Return one fault."""
    where = draw.choice(["create", "api", "pod", "pod", "pod", "proxy", "proxy", "artifact", "restart"])
    if where == "create":
        return Fault("create", draw.choice(CREATE), skip=draw.randint(0, 2), times=draw.randint(1, 4))
    if where == "api":
        return Fault("api", draw.choice(API), skip=draw.randint(0, 12), times=draw.randint(1, 5))
    if where == "pod":
        kind, after = draw.choice(POD), draw.uniform(0.05, 1.2) * SCALE
        return Fault("pod", kind, skip=draw.randint(0, 2), times=draw.randint(1, 2), after=after)
    if where == "restart":
        return Fault("restart", "ignored")
    if where == "artifact":
        stream = draw.choice(["artifact", "artifact", "metrics"])
        return Fault(f"proxy:{stream}", draw.choice(PIECES), skip=draw.randint(0, 2), times=draw.randint(1, 4))
    skip, times = draw.randint(0, 15), draw.choice([1, 3, 10])
    return Fault(f"proxy:{draw.choice(CATEGORIES)}", draw.choice(PROXY), skip=skip, times=times)


@dataclass
class Report:
    """What a scenario came to: broken invariants (none, one hopes), endings of jobs, and how many faults fired."""

    seed: int
    broken: list[str] = field(default_factory=list)
    endings: Counter[str] = field(default_factory=Counter)
    killed: int = 0
    pods: int = 0
    seconds: float = 0.0


def run(seed: int) -> Report:
    """Run one scenario and judge it."""
    scenario, report, began = Scenario.draw(seed), Report(seed), time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix=f"trainwright-chaos-{seed}-"))
    folder.chmod(0o755)
    try:
        with FakeRunpod(folder / "pods", scenario.faults, gpus=GPUS, balance=scenario.balance) as fake:
            execute(scenario, fake, folder, report)
            judge(scenario, fake, folder, report)
    except Exception as error:
        report.broken.append(f"the scenario itself failed: {error!r}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    report.seconds = time.monotonic() - began
    return report


def execute(scenario: Scenario, fake: FakeRunpod, folder: Path, report: Report) -> None:
    """Run the controllers of a scenario, killed ones again, until they are done or abandoned."""
    config = settings(
        fake,
        HASTY,
        money__max_usd_total=scenario.cap,
        money__max_usd_per_hour=300.0,
        boot_failures=50,
        max_pods=4,
        times__idle=scenario.idle,
    ).model_dump()
    rival_jobs = {f"rival-{scenario.seed}-0-{number}": (f"r{number}", "0.1") for number in range(2)}
    rival = None
    if scenario.rival == "other folder":
        rival = start(Plan(made(folder / "rival"), config, rival_jobs))
    lives = [*scenario.kills, (-1, False)]
    for number, (kill_at, after) in enumerate(lives):
        processes = [start(Plan(made(folder / "run"), config, scenario.jobs, kill_at, after))]
        if number == 0 and scenario.rival == "same folder":
            processes.append(start(Plan(made(folder / "run"), config, scenario.jobs)))
        if scenario.poor:
            kill_when_poor(scenario, fake, processes[0])
        for process in processes:
            finish(process, report)
        codes = [process.exitcode for process in processes]
        report.killed += codes.count(-9)
        if set(codes) - {0, -9, REFUSED} or set(codes) == {REFUSED}:
            report.broken.append(f"controllers ended with exit codes {codes}")
            break
        if 0 in codes or scenario.abandoned:
            break
    if rival is not None:
        finish(rival, report)
        if rival.exitcode == 0 and scenario.cap == 1000.0 and scenario.balance == 1e9:
            found = {kind for kind, *_ in controller.outcomes(folder / "rival").values()}
            if found - {"TRAINED", "INFRA"}:
                report.broken.append(f"the rival's good jobs ended as {found}")


def judge(scenario: Scenario, fake: FakeRunpod, folder: Path, report: Report) -> None:
    """Check the invariants."""
    abandoned = scenario.abandoned and report.killed > 0
    limit = time.monotonic() + HASTY["lease"] + SLACK
    while fake.live() and time.monotonic() < limit:
        time.sleep(0.05)
    left = [pod for pod in fake.live() if not (abandoned and without_agent(pod))]
    if left:
        report.broken.append(f"pods are left: {[(pod.id, pod.status, pod.faults) for pod in left]}")
    late = fake.overstayed(SLACK)
    if late and not (abandoned and any(without_agent(pod) for pod in fake.pods)):
        report.broken.append(f"pods outlived their leases: {late}")
    if abandoned:  # whoever abandons a run has `trainwright pods reap` in cron for the pods whose agents never ran
        asyncio.run(reap_all(fake))
        if fake.live():
            report.broken.append("reap left a pod")
    spent, folders = fake.spent(), [folder / "run", folder / "rival"]
    allowed = scenario.cap * (2 if scenario.rival == "other folder" else 1) + MINUTE * max(GPUS.values()) / 3600
    known = not (abandoned and any(without_agent(pod) for pod in fake.pods))
    if spent > allowed and known and not any(fault.kind == "dearer" for fault in scenario.faults):
        report.broken.append(f"${spent:.3f} spent, ${allowed:.3f} allowed")
    booked = sum(books(one) for one in folders)
    known_of = fake.spent(shown=True)  # a pod whose create got no answer and that no list showed is in nobody's books
    if booked < 0.9 * known_of - 2 * MINUTE * max(GPUS.values()) / 3600 and not abandoned:
        report.broken.append(f"${known_of:.3f} spent, ${booked:.3f} in the books")
    if fake.unauthorized:
        report.broken.append(f"{fake.unauthorized} calls with a wrong key")
    for one in folders:
        with contextlib.suppress(FileNotFoundError):
            if (grown := int((one / "grown_kb").read_text())) > MAX_GROWTH_KB:
                report.broken.append(f"a controller grew by {grown} kB")
    for (pod, boot), groups in fake.groups().items():
        if len(groups) > 1:
            report.broken.append(f"container {boot} of pod {pod} ran the code of {sorted(groups)}")
    judge_outcomes(scenario, folder / "run", abandoned, report)
    judge_attempts(folder / "run", abandoned, report)
    report.pods = len(fake.pods)


def judge_outcomes(scenario: Scenario, folder: Path, abandoned: bool, report: Report) -> None:
    """Check that every job was counted once, for what it was."""
    found = controller.outcomes(folder)
    if not abandoned and set(found) != set(scenario.jobs):
        report.broken.append(f"episodes are lost: {sorted(set(scenario.jobs) - set(found))}")
    for key, (kind, reason, digest, metrics) in found.items():
        name, wanted = scenario.jobs[key]
        report.endings[kind] += wanted != "infra"
        if kind in {"INFRA", "OUT_OF_MONEY"}:
            continue
        if metrics not in ([], METRICS):
            report.broken.append(f"{key} has forged metrics: {metrics}")
        if wanted == "infra":
            good = False  # a command that can't work is nobody's fault but ours
        elif wanted in BAD:
            good = kind == "JOB_FAULT" and reason == REASONS[wanted]
        else:
            good = kind == "TRAINED" and digest == hashlib.sha256(weights_of(name)).hexdigest()
        if not good:
            report.broken.append(f"{key} ({wanted}) became {kind} {reason}")


def judge_attempts(folder: Path, abandoned: bool, report: Report) -> None:
    """Check that no job ran again after its result was there, and that nothing is left open."""
    if not (folder / "pods.sqlite").exists():
        return
    with contextlib.closing(sqlite3.connect(folder / "pods.sqlite")) as db:
        join = "SELECT attempts.key FROM attempts JOIN jobs USING (key) WHERE began > finished_at"
        if again := db.execute(join).fetchall():
            report.broken.append(f"jobs ran again after their results: {again}")
        if not abandoned and (left := db.execute("SELECT id FROM attempts WHERE ended IS NULL").fetchall()):
            report.broken.append(f"attempts were left open: {left}")


def kill_when_poor(scenario: Scenario, fake: FakeRunpod, process: Any) -> None:
    """Kill a controller once the scenario's money is nearly gone."""
    limit = time.monotonic() + LIMIT
    while fake.spent() < scenario.poor and time.monotonic() < limit:
        time.sleep(0.02)
        with LOCK:
            if not process.is_alive():
                return
    process.kill()


def start(plan: Plan) -> Any:
    """Start a controller process."""
    with LOCK:
        process = PROCESSES.Process(target=controller.main, args=(plan,))
        process.start()
    return process


def finish(process: Any, report: Report) -> None:
    """Wait for a controller; one that never ends is broken."""
    limit, alive = time.monotonic() + LIMIT, True
    while alive:
        time.sleep(0.02)
        with LOCK:
            alive = process.is_alive()
        if alive and time.monotonic() > limit:
            report.broken.append(f"a controller did not end within {LIMIT:g} seconds")
            process.kill()
            process.join()
            return


def made(folder: Path) -> Path:
    """Return a folder that exists."""
    folder.mkdir(exist_ok=True)
    return folder


def without_agent(pod: FakePod) -> bool:
    """Return whether a pod's agent never ran, or was stopped by a fault: nothing on it can end it."""
    return (
        pod.started is None
        or pod.stopped
        or any(fault.kind in NO_AGENT for fault in pod.faults)
        or pod.status != "RUNNING"
    )


def books(folder: Path) -> float:
    """Return what `trainwright status` says was spent: pods that could not be deleted are still in it."""
    spend = read_spend(folder, time.time())
    return sum(usd for _, usd in spend.values()) if spend else 0.0


async def reap_all(fake: FakeRunpod) -> None:
    """Do what `trainwright pods reap --all` does."""
    fake.faults.clear()
    async with RunpodApi(fake.base_url, ACCOUNT_KEY) as api:
        async for _ in sweep(api, await api.pods(), lambda pod: "abandoned"):
            pass


def main() -> None:
    """Run many scenarios: `python chaos.py FIRST COUNT PARALLEL`, a line for each that breaks, totals every hundred."""
    import sys
    from concurrent.futures import ThreadPoolExecutor

    first, count, parallel = (int(word) for word in sys.argv[1:4])
    totals: Counter[str] = Counter()
    began = time.monotonic()
    with ThreadPoolExecutor(parallel) as threads:
        for report in threads.map(run, range(first, first + count)):
            totals.update(scenarios=1, broken=bool(report.broken), killed=report.killed, pods=report.pods)
            totals.update(report.endings)
            for line in report.broken:
                print(f"seed {report.seed}: {line}", flush=True)
            if totals["scenarios"] % 100 == 0 or totals["scenarios"] == count:
                print(f"{dict(totals)} in {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
