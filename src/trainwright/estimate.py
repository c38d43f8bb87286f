"""What a run will spend, before anything is spent: the agent's tokens, GPU hours and dollars, expected and at most.

The numbers follow from the configuration, from the tasks it draws and from a few assumptions that are printed with
them. They are for deciding whether to start; what was really spent is in the ledger and in `metrics.jsonl`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from statistics import fmean

from trainwright.agent.brief import brief_for
from trainwright.agent.prices import Price, Tokens, price_of
from trainwright.config import RunConfig
from trainwright.errors import ConfigError
from trainwright.ledger import Ledger
from trainwright.seeds import derive_seed
from trainwright.suites.family import Task
from trainwright.suites.offers import run_families, run_family

CHARACTERS_A_TOKEN = 3.5
"""Briefs and jobs are English and code; no tokenizer is loaded for an estimate."""
REFUSED = 0.5
"""Share of answers that the gate sends back, where there is another attempt."""
VERDICT_TOKENS = 60
JOB_MINUTES = 8.0
"""GPU minutes of a job, as assumed in docs/runpod.md; never measured."""
IDLE = 0.10
"""Share of paid pod time in which no job runs (`benchmarks/pods.py`, simulated)."""
DRAWS = 32
"""Tasks drawn a family to see how long briefs are and which reference scores are needed."""


@dataclass(frozen=True)
class Amount:
    """Expected and at most."""

    expected: float
    most: float

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.expected + other.expected, self.most + other.most)

    def __mul__(self, factor: float) -> Amount:
        return Amount(self.expected * factor, self.most * factor)


@dataclass(frozen=True)
class Estimate:
    """The estimate of a whole run. `expected` and `most` are the agent's tokens, zero for an agent of our own."""

    training_episodes: int
    probe_episodes: int
    reference_jobs: int
    expected: Tokens
    most: Tokens
    price: Price | None
    """None when nobody sells the agent's tokens."""
    gpu_hours: Amount
    pod_usd: Amount
    notes: tuple[str, ...]

    @property
    def agent_usd(self) -> Amount:
        """Return the agent's dollars, as far as prices are known."""
        if self.price is None:
            return Amount(0.0, 0.0)
        return Amount(self.expected.dollars(self.price), self.most.dollars(self.price))

    @property
    def usd(self) -> Amount:
        """Return all dollars."""
        return self.agent_usd + self.pod_usd

    @property
    def unpriced(self) -> list[str]:
        """Return the kinds of tokens without a known price."""
        return [] if self.price is None else self.most.unpriced(self.price)


def estimate_run(config: RunConfig) -> Estimate:
    """Return what a run with this configuration will spend from its first step to its last."""
    chat = config.agent.chat if config.agent.backend == "chat" else None
    training = config.steps * config.groups * config.group_size
    between = sum(1 for step in range(1, config.steps) if config.probe.every and step % config.probe.every == 0)
    probe = 0
    if config.tasks.held_out and config.probe.episodes:
        probe = (
            config.probe.episodes
            if chat
            else 2 * config.probe.episodes + between * min(config.probe.episodes_between, config.probe.episodes)
        )
    tasks = _tasks(config)
    keys = {task.key: task for task in tasks}.values()
    references = config.measure.reference_seeds * sum(len(task.offers) for task in keys) if training + probe else 0
    price, notes = _price(config)
    expected = most = Tokens()
    if price is not None:
        brief, answer = _lengths(config, tasks)
        attempts = config.agent.max_attempts
        longest = float(chat.max_tokens if chat else config.agent.max_tokens)
        usual = longest if config.agent.tinker is not None and config.agent.tinker.thinking else min(answer, longest)
        expected = _tokens(config, training, probe, brief, usual, [REFUSED**number for number in range(attempts)])
        most = _tokens(config, training, probe, brief, longest, [1.0] * attempts)
        notes += [
            f"a brief of {brief:,.0f} tokens and an answer of {usual:,.0f} ({CHARACTERS_A_TOKEN} characters a token; "
            "an answer as long as the reference job, at most agent.max_tokens)"
        ]
        if chat:
            expected, most = replace(expected, train=0), replace(most, train=0)
            notes += ["a model that thinks writes more than its answer: up to agent.chat.max_tokens"]
        if attempts > 1:
            notes += [f"{REFUSED:.0%} of answers sent back by the gate, at most all of them, {attempts} times"]
    if config.max_off_policy_steps:
        notes += ["no group dropped as stale; each one that is runs in vain (metric groups_stale)"]
    hours, pods, more = _compute(config, training + probe, references)
    return Estimate(training, probe, references, expected, most, price, hours, pods, tuple(notes + more))


def _tasks(config: RunConfig) -> list[Task]:
    seeds = [derive_seed(config.seed, "estimate", number) for number in range(DRAWS)]
    return [family.draw(seed) for family in run_families(config.tasks) for seed in seeds]


def _price(config: RunConfig) -> tuple[Price | None, list[str]]:
    """Return the price of the agent's tokens, None for an agent that nobody sells, and what to say about it."""
    chat, settings = config.agent.chat, config.agent.tinker
    if config.agent.backend == "chat" and chat is not None:
        if chat.own_server and chat.price is None:
            return None, ["the agent runs on a server of your own"]
        return _known_price(chat.price, chat.model)
    if config.agent.backend != "tinker" or settings is None:
        billed = "" if config.agent.backend == "local" else "; what it bills is not known here"
        return None, [f"the agent {config.agent.backend!r} is not sold by the token{billed}"] if billed else []
    if settings.server != "tinker":
        return None, ["the agent runs on a server of your own, whose GPU hours are not in here"]
    return _known_price(settings.price, settings.base_model)


def _known_price(given: Price | None, model: str) -> tuple[Price, list[str]]:
    price = given or price_of(model)
    if price.source:
        return price, [f"prices of {price.read}: {price.source}"]
    return price, [] if given else [f"no price is known for {model}: tokens only"]


def _lengths(config: RunConfig, tasks: list[Task]) -> tuple[float, float]:
    """Return the mean length of a brief and of a reference job's answer, in tokens."""
    style = config.agent.tinker.brief if config.agent.tinker is not None else "full"
    briefs = [sum(len(message["content"]) for message in brief_for(task, style)) for task in tasks]
    jobs = [run_family(config.tasks, task.family).reference_job(task, task.offers[0].student) for task in tasks]
    return fmean(briefs) / CHARACTERS_A_TOKEN, fmean(len(job.render()) for job in jobs) / CHARACTERS_A_TOKEN


def _tokens(config: RunConfig, training: int, probe: int, brief: float, answer: float, shares: list[float]) -> Tokens:
    """Return all tokens, when `shares` are the episodes that make a first, second, ... attempt.

    A group's first attempts are one request: its prompt is read once, the other members hit the cache.
    """
    prefill = cached = sample = train = 0.0
    for number, share in enumerate(shares):
        prompt = brief + number * (answer + VERDICT_TOKENS)
        episodes = share * (training + probe)
        if number == 0:
            asked = training / config.group_size + probe
            prefill, cached = prefill + asked * prompt, cached + (episodes - asked) * prompt
        else:
            prefill += episodes * prompt
        sample += episodes * answer
        train += share * training * (prompt + answer)
    return Tokens(round(prefill), round(cached), round(sample), round(train))


def _compute(config: RunConfig, episodes: int, references: int) -> tuple[Amount, Amount, list[str]]:
    """Return GPU hours and pods' dollars of the jobs, the reference jobs included."""
    none = Amount(0.0, 0.0)
    jobs = episodes + references
    pods = config.pool.runpod
    if config.pool.backend == "runpod" and pods is not None:
        hours = Amount(jobs * JOB_MINUTES / 60 / (1 - IDLE), jobs * pods.times.job / 3600 / (1 - IDLE))
        limit = min(gpu.max_usd_per_hour for gpu in pods.gpus)
        dearest = max(gpu.max_usd_per_hour for gpu in pods.gpus)
        cap = pods.money.max_usd_total
        usd = Amount(min(hours.expected * limit, cap), min(hours.most * dearest, cap))
        notes = [
            f"a job takes {JOB_MINUTES:g} minutes, at most {pods.times.job / 60:g}; "
            f"{IDLE:.0%} of paid time without one",
            f"GPUs at the price limits of pool.runpod.gpus (${limit:g} to ${dearest:g} an hour), not at list prices",
        ]
        if hours.expected * limit > cap:
            notes += [f"pool.runpod.money.max_usd_total = {cap:g} ends the run before its last step"]
        return hours, usd, notes
    if config.engine.backend == "prime-rl":
        hours = Amount(jobs * JOB_MINUTES / 60, jobs * config.pool.job_seconds / 3600)
        return hours, none, [f"a job takes {JOB_MINUTES:g} minutes on a GPU of your own"]
    return none, none, []


def table(config: RunConfig, found: Estimate) -> list[str]:
    """Return the estimate as lines to print."""
    lines = [
        f"{config.steps} steps of {config.groups} groups x {config.group_size} episodes, "
        f"{found.probe_episodes:,} held-out probe episodes, {found.reference_jobs} reference jobs "
        f"unless their scores are cached",
        f"  {'':26}{'expected':>16}{'at most':>16}",
    ]
    rows = [("jobs", Amount(1, 1) * (found.training_episodes + found.probe_episodes + found.reference_jobs), ",.0f")]
    if found.price is not None:
        for label, kind in (
            ("prompt", "prefill"),
            ("prompt, cached", "cached"),
            ("sampled", "sample"),
            ("trained", "train"),
        ):
            rows += [(f"tokens, {label}", Amount(getattr(found.expected, kind), getattr(found.most, kind)), ",.0f")]
        partly = f" without {', '.join(found.unpriced)}" if found.unpriced else ""
        if not set(found.unpriced) >= {"prefill", "sample"}:
            rows += [(f"agent, USD{partly}", found.agent_usd, ",.2f")]
    if found.gpu_hours.most:
        rows += [("GPU hours", found.gpu_hours, ",.1f")]
    if found.pod_usd.most:
        rows += [("pods, USD", found.pod_usd, ",.2f")]
    if found.usd.most:
        rows += [("all, USD", found.usd, ",.2f")]
    lines += [f"  {label:26}{amount.expected:>16{form}}{amount.most:>16{form}}" for label, amount, form in rows]
    if found.unpriced:
        lines += [f"  not in the dollars, for want of a price: {', '.join(found.unpriced)} tokens"]
    if not found.usd.most and not found.unpriced:
        lines += ["  nothing is rented or bought"]
    return lines + [f"  assumed: {note}" for note in found.notes]


def confirm(config: RunConfig, yes: bool) -> None:
    """Ask on the terminal before a run that is expected to cost more than `ask_above_usd`, or an unknown amount.

    What a resumed run has left counts. Raises `ConfigError` when the answer is no, or there is nobody to ask.
    """
    if yes or (config.agent.backend == "local" and config.pool.backend == "local"):
        return
    found = estimate_run(config)
    left = _share_left(config)
    expected = found.usd.expected * left
    if not left or (expected <= config.ask_above_usd and not found.unpriced):
        return
    for line in table(config, found):
        print(line)
    unknown = f", and {', '.join(found.unpriced)} tokens without a known price" if found.unpriced else ""
    told = f"this run is expected to spend ${expected:.2f}{unknown}"
    if not sys.stdin.isatty():
        raise ConfigError(f"{told}; add --yes to start it without being asked, or raise ask_above_usd")
    if input(f"{told}. Go on? [y/N] ").strip().lower() not in ("y", "yes"):
        raise ConfigError("not started")


def _share_left(config: RunConfig) -> float:
    path = config.folder / "ledger.sqlite"
    if not path.exists() or not config.steps:
        return 1.0
    ledger = Ledger(path, read_only=True)
    try:
        return max(0.0, 1 - len(ledger.steps()) / config.steps)
    finally:
        ledger.close()
