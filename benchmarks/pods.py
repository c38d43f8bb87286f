"""What of the pods' bill isn't jobs, under which policy: a discrete-event simulation of the Runpod pool.

    python benchmarks/pods.py [--json] [--seeds 5] [--boot MINUTES] [--job MINUTES] ...

Fifty-four steps of five groups of eight episodes on sixteen pods, one of them for evaluation. Everything drawn is drawn
from the distributions of `World`, which are assumptions (a live run replaces them), not measurements. Which pod takes
which job and how many pods there are is decided by the pool's own functions (`runpod/queue.py`).

Paid seconds are split as in the pool's books: working, booting (restarts included), idle, lost. `not working` is the
share of the last three. With policies switched on one by one the table shows what each of them buys.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from statistics import fmean

from trainwright.pools.runpod.queue import choose, pods_wanted

GOAL = 0.15


@dataclass(frozen=True)
class World:
    """Assumed times in seconds. `*_spread` is the sigma of a log-normal distribution around the median."""

    pods: int = 16
    evaluation_pods: int = 1
    steps: int = 54
    groups: int = 5
    group_size: int = 8
    boot: float = 360.0
    boot_spread: float = 0.5
    restart: float = 45.0
    restart_spread: float = 0.3
    job: float = 480.0
    job_spread: float = 0.4
    job_limit: float = 1800.0
    answer: float = 90.0
    answer_spread: float = 0.3
    evaluation: float = 10.0
    evaluation_spread: float = 0.3
    update: float = 60.0
    update_spread: float = 0.3
    rejected: float = 0.1
    lost: float = 0.01


@dataclass(frozen=True)
class Policy:
    """How the pool behaves. `idle` is the time after which a pod without work is deleted."""

    name: str
    warm: bool = True
    idle: float = math.inf
    staleness: int = 0
    spread: bool = True


POLICIES = [
    Policy("a pod for each job", warm=False, idle=0.0),
    Policy("pods kept for the whole run"),
    Policy("kept 10 minutes when idle", idle=600.0),
    Policy("kept 2 minutes when idle", idle=120.0),
    Policy("overlapping steps, pods kept", staleness=2),
    Policy("overlapping, oldest job first", idle=120.0, staleness=2, spread=False),
    Policy("overlapping, 2 minutes when idle", idle=120.0, staleness=2),
]


@dataclass
class Bill:
    """Pod-seconds by kind, and how long the run took."""

    working: float = 0.0
    booting: float = 0.0
    idle: float = 0.0
    lost: float = 0.0
    run_seconds: float = 0.0
    pods: int = 0

    @property
    def not_working(self) -> float:
        """Return the share of paid time that wasn't work."""
        paid = self.working + self.booting + self.idle + self.lost
        return 1 - self.working / paid


@dataclass(eq=False)
class Pod:
    """A pod: what it does since when, and the group whose code ran on it."""

    role: str
    phase: str
    since: float
    group: str = ""
    epoch: int = 0


@dataclass(frozen=True)
class Task:
    """One job or one evaluation: its trust group, its length, and what follows."""

    role: str
    group: str
    seconds: float
    then: Callable[[], None] = field(compare=False)


class Run:
    """One simulated run of the outer loop over a pool."""

    def __init__(self, world: World, policy: Policy, seed: int) -> None:
        self.world, self.policy, self.random = world, policy, random.Random(seed)
        self.now, self.bill = 0.0, Bill()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = itertools.count()
        self._pods: list[Pod] = []
        self._waiting: list[Task] = []
        self._started = self._version = 0
        self._open: Counter[int] = Counter()
        self._done_steps: set[int] = set()

    def simulate(self) -> Bill:
        """Return the bill of the run."""
        self._start_steps()
        while self._events:
            self.now, _, event = heapq.heappop(self._events)
            event()
        for pod in list(self._pods):
            self._delete(pod)
        return self.bill

    # The outer loop: a step may begin when the policy is at most `staleness` updates behind it

    def _start_steps(self) -> None:
        while self._started < self.world.steps and self._version >= self._started - self.policy.staleness:
            step = self._started
            self._started += 1
            self._open[step] = self.world.groups * self.world.group_size
            for group in range(self.world.groups):
                self._after(self._draw("answer"), partial(self._answered, step, group))

    def _answered(self, step: int, group: int) -> None:
        for _ in range(self.world.group_size):
            if self.random.random() < self.world.rejected:
                self._episode_done(step)
            else:
                seconds = min(self._draw("job"), self.world.job_limit)
                self._waiting.append(Task("training", f"{step}-{group}", seconds, partial(self._trained, step)))
        self._dispatch()

    def _trained(self, step: int) -> None:
        seconds = self._draw("evaluation")
        self._waiting.append(Task("evaluation", "", seconds, partial(self._episode_done, step)))
        self._dispatch()

    def _episode_done(self, step: int) -> None:
        self._open[step] -= 1
        if self._open[step] == 0:
            self._done_steps.add(step)
            if step == self._version:
                self._update()

    def _update(self) -> None:
        def updated() -> None:
            self._version += 1
            self.bill.run_seconds = self.now
            self._start_steps()
            if self._version in self._done_steps:
                self._update()

        self._after(self._draw("update"), updated)

    # The pool

    def _dispatch(self) -> None:
        for pod in [pod for pod in self._pods if pod.phase == "idle"]:
            mine = [task for task in self._waiting if task.role == pod.role]
            if mine:
                serving = [other.group for other in self._pods if other.role == pod.role]
                spread = self.policy.spread or pod.role == "evaluation"
                task = mine[choose([one.group for one in mine], pod.group, serving) if spread else 0]
                self._waiting.remove(task)
                self._give(pod, task)
        for role, room in (("evaluation", self.world.evaluation_pods), ("training", self._training_room)):
            mine_now = [pod for pod in self._pods if pod.role == role]
            busy = sum(pod.phase in {"working", "restarting"} for pod in mine_now)
            waiting = sum(task.role == role for task in self._waiting)
            for _ in range(pods_wanted(waiting, busy, room) - len(mine_now)):
                pod = Pod(role, "booting", self.now)
                self._pods.append(pod)
                self.bill.pods += 1
                self._after(self._draw("boot"), partial(self._rest, pod))

    @property
    def _training_room(self) -> int:
        return self.world.pods - self.world.evaluation_pods

    def _give(self, pod: Pod, task: Task) -> None:
        dirty = pod.role == "training" and pod.group not in ("", task.group)
        self._enter(pod, "restarting" if dirty else "working")
        pod.group = task.group
        lost = pod.role == "training" and self.random.random() < self.world.lost
        if dirty:
            self._after(self._draw("restart"), partial(self._work, pod, task, lost))
        else:
            self._work(pod, task, lost)

    def _work(self, pod: Pod, task: Task, lost: bool) -> None:
        self._enter(pod, "working")

        def ended() -> None:
            if lost:
                self._enter(pod, "lost", kind="lost")
                self._delete(pod)
                self._waiting.insert(0, task)
            elif self.policy.warm or pod.role == "evaluation":
                self._rest(pod)
                task.then()
            else:
                self._delete(pod)
                task.then()
            self._dispatch()

        self._after(task.seconds * (0.5 if lost else 1.0), ended)

    def _rest(self, pod: Pod) -> None:
        self._enter(pod, "idle")
        pod.epoch += 1
        epoch = pod.epoch
        self._dispatch()
        if pod.phase == "idle" and self.policy.idle < math.inf:

            def give_up() -> None:
                if pod.epoch == epoch and pod.phase == "idle" and pod in self._pods:
                    self._delete(pod)

            self._after(self.policy.idle, give_up)

    def _enter(self, pod: Pod, phase: str, kind: str = "") -> None:
        kind = kind or {"restarting": "booting"}.get(pod.phase, pod.phase)
        setattr(self.bill, kind, getattr(self.bill, kind) + self.now - pod.since)
        pod.phase, pod.since = phase, self.now

    def _delete(self, pod: Pod) -> None:
        self._enter(pod, "gone")
        self._pods.remove(pod)

    # Time and chance

    def _after(self, seconds: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._number), event))

    def _draw(self, what: str) -> float:
        median, spread = getattr(self.world, what), getattr(self.world, f"{what}_spread")
        return self.random.lognormvariate(math.log(median), spread)


def average(world: World, policy: Policy, seeds: int) -> dict[str, float]:
    """Return the mean bill over seeds, in hours, and its shares."""
    bills = [Run(world, policy, seed).simulate() for seed in range(seeds)]
    hours = {
        kind: fmean(getattr(bill, kind) for bill in bills) / 3600 for kind in ("working", "booting", "idle", "lost")
    }
    return {
        **{f"{kind}_hours": value for kind, value in hours.items()},
        "paid_hours": sum(hours.values()),
        "not_working": fmean(bill.not_working for bill in bills),
        "run_hours": fmean(bill.run_seconds for bill in bills) / 3600,
        "pods": fmean(bill.pods for bill in bills),
    }


def main() -> None:
    """Simulate every policy and print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--seeds", type=int, default=5, help="runs to average over (5)")
    for name in ("boot", "restart", "job", "answer", "evaluation", "update"):
        parser.add_argument(f"--{name}", type=float, metavar="SECONDS", help=f"median ({getattr(World, name):g})")
    options = parser.parse_args()
    given = {name: value for name, value in vars(options).items() if value is not None and hasattr(World, name)}
    world = replace(World(), **given)
    results = {policy.name: average(world, policy, options.seeds) for policy in POLICIES}
    best = POLICIES[-1].name
    if options.json:
        print(json.dumps({"world": asdict(world), "policies": results, "goal": GOAL, "default": best}, indent=2))
        return
    heads = ["paid h", "working", "booting", "idle", "lost", "not working", "run h"]
    print(f"{'policy':34}" + "".join(f"{head:>12}" for head in heads))
    for name, row in results.items():
        shares = [row[f"{kind}_hours"] / row["paid_hours"] for kind in ("working", "booting", "idle", "lost")]
        cells = [f"{row['paid_hours']:.0f}", *(f"{share:.1%}" for share in shares), f"{row['not_working']:.1%}"]
        print(f"{name:34}" + "".join(f"{cell:>12}" for cell in [*cells, f"{row['run_hours']:.1f}"]))
    print(f"goal with overlapping steps: at most {GOAL:.0%} not working; here {results[best]['not_working']:.1%}")


if __name__ == "__main__":
    main()
