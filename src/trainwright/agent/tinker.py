"""The trainer agent on Tinker: a large model's LoRA, sampled and trained on a server, behind the `Policy` protocol.

The update is one policy-gradient step on the answers' tokens with the sampler's log-probabilities as old ones and
group-relative advantages (`importance_sampling`, `ppo` or `cispo`; tinker 0.38.0's names). Nothing counts before its
state is saved on the server: an update that fails or is killed anywhere is taken again, whole, from the state before
it, on a new connection. So no batch is ever trained on twice, and none is lost.

A server does not promise equal answers for equal seeds; the rest of a run is as reproducible as elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from trainwright.agent.policy import BriefStyle, Completion, Example
from trainwright.agent.prices import Tokens, price_of
from trainwright.agent.tinker_renderer import ChatRenderer, make_renderer
from trainwright.agent.tinker_settings import TinkerSettings
from trainwright.agent.tinker_state import SavedState, read_state
from trainwright.config import RunConfig
from trainwright.errors import ConfigError, TrainwrightError
from trainwright.messages import Message
from trainwright.seeds import derive_seed

if TYPE_CHECKING:
    from trainwright.agent.tinker_client import Connection

T = TypeVar("T")
log = logging.getLogger(__name__)

SDK_VERSION = "0.38."
SHORTEST_ANSWER = 16
"""Tokens of the model's context that a prompt must leave."""
STUBBORN = 3
"""Attempts at what fails for no passing reason."""
KEY_HELP = "make one at the Tinker console (it starts with 'tml-'), then: export TINKER_API_KEY=..."


def preflight(config: RunConfig) -> None:
    """Raise `ConfigError` for what can be known before anything starts: settings, key, SDK, network."""
    settings = _settings(config)
    if settings.server == "tinker":
        _check_key()
    try:
        installed = version("tinker")
    except PackageNotFoundError:
        raise ConfigError("agent.backend = 'tinker' needs the extra: pip install 'trainwright[tinker]'") from None
    if not installed.startswith(SDK_VERSION):
        raise ConfigError(
            f"tinker {installed} is installed, trainwright was checked with {SDK_VERSION}x: "
            "pip install 'trainwright[tinker]'"
        )
    _check_network(settings)


def tinker_policy(config: RunConfig, progress: Callable[[int, int], None]) -> TinkerPolicy:
    """Return the agent of a run with `agent.backend = "tinker"`; it connects when it is first needed."""
    preflight(config)
    settings = _settings(config)
    progress(0, 1)
    renderer = make_renderer(settings.tokenizer or settings.base_model, settings.thinking)
    progress(1, 1)
    return TinkerPolicy(settings, renderer, config.agent.max_tokens, derive_seed(config.seed, "lora"))


class TinkerPolicy:
    """A policy on a Tinker server. Implements `Policy`."""

    concurrent = True

    def __init__(self, settings: TinkerSettings, renderer: ChatRenderer, max_tokens: int, seed: int) -> None:
        self.name = settings.base_model
        self.brief: BriefStyle = settings.brief
        self.settings = settings
        self.renderer = renderer
        self.max_tokens = max_tokens
        self.seed = seed
        self.price = settings.price or price_of(settings.base_model)
        self.state = SavedState(settings.base_model, settings.rank, "", None, 0)
        self._folder: Path | None = None
        self._connection: Connection | None = None
        self._left: list[Connection] = []
        self._training = asyncio.Lock()  # held by whatever changes the weights or makes a connection
        self._probed = False
        self._spent = Tokens()

    async def sample(self, conversations: Sequence[Sequence[Message]], seed: int) -> list[Completion]:
        """Return one answer a conversation; equal conversations are one request, whose prompt is read once."""
        prompts = [tuple(self.renderer.prompt(conversation)) for conversation in conversations]
        rows: dict[tuple[int, ...], list[int]] = {}
        for row, prompt in enumerate(prompts):
            rows.setdefault(prompt, []).append(row)
        try:
            async with asyncio.TaskGroup() as running:
                tasks = [
                    running.create_task(self._answers(list(prompt), len(places), derive_seed(seed, number)))
                    for number, (prompt, places) in enumerate(rows.items())
                ]
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        answers: dict[int, Completion] = {}
        for places, task in zip(rows.values(), tasks, strict=True):
            answers |= dict(zip(places, task.result(), strict=True))
        return [answers[row] for row in range(len(prompts))]

    async def _answers(self, prompt: list[int], count: int, seed: int) -> list[Completion]:
        async def work(connection: Connection) -> list[Completion]:
            room = self.max_tokens if connection.context is None else connection.context - len(prompt)
            if room < SHORTEST_ANSWER:
                log.warning("a prompt of %d tokens leaves no room for an answer in %s", len(prompt), self.name)
                return [Completion("", finished=False)] * count
            weights = connection.weights
            response = await connection.sample(
                prompt, count=count, max_tokens=min(self.max_tokens, room), seed=seed, stop=self.renderer.stop
            )
            hits = response.prompt_cache_hit_tokens
            lengths = [len(sequence.tokens) for sequence in response.sequences]
            spent = Tokens(len(prompt) - hits, hits + len(prompt) * (count - 1), sum(lengths))
            self._spent += spent
            return [
                Completion(
                    text=self.renderer.answer(prompt, sequence.tokens),
                    prompt_tokens=prompt,
                    tokens=sequence.tokens,
                    logprobs=sequence.logprobs or [],
                    finished=sequence.stop_reason == "stop",
                    usd=spent.dollars(self.price) / count,
                    weights=weights,
                )
                for sequence in response.sequences
            ]

        return await self._insist("sampling", work)

    async def update(self, examples: Sequence[Example]) -> dict[str, float]:
        """Take `num_substeps` optimizer steps on the batch, save the state, refresh the sampler; return the metrics."""
        told = [example for example in examples if example.completion.tokens]
        if not told:
            return {}
        metrics = await self._insist("the policy update", partial(self._update, told), alone=True)
        trained = Tokens(train=sum(_length(example) for example in told))
        spent, self._spent = self._spent + trained, Tokens()
        kinds = {"prefill": spent.prefill, "cached": spent.cached, "sample": spent.sample, "train": spent.train}
        metrics |= {f"tokens_{kind}": float(count) for kind, count in kinds.items()}
        return metrics | {"usd": trained.dollars(self.price)}  # what the answers cost stands with them

    async def _update(self, examples: Sequence[Example], connection: Connection) -> dict[str, float]:
        from trainwright.agent.tinker_data import policy_datums, read_pass
        from trainwright.agent.tinker_faults import Trouble, skew

        settings, steps = self.settings, self.state.steps
        metrics: dict[str, float] = {}
        for part in range(min(settings.num_substeps, len(examples))):
            chosen = examples[part :: settings.num_substeps]  # a share of every group
            output = await connection.forward_backward(policy_datums(chosen, settings), settings.loss)
            try:
                passed = read_pass(chosen, output, self.state.steps).metrics(settings)
            except ValueError as error:
                raise skew("the policy update", str(error)) from None
            if part == 0:  # later parts differ from the sampler by the steps between
                self._check_mismatch(passed)
                metrics = passed
            rise = min(1.0, (steps + 1) / (settings.warmup_steps + 1))
            metrics |= await connection.optim_step(settings.learning_rate * rise)
            steps += 1
        ttl = None if settings.server == "skyrl" else round(settings.ttl_days * 86400)
        path = await connection.save(f"step-{steps:05d}", ttl)
        self.state = replace(self.state, path=path, expires=None if ttl is None else time.time() + ttl, steps=steps)
        try:
            await connection.refresh(steps)
        except Trouble as trouble:  # the step is taken; the next connection starts from its state
            log.warning("%s; connecting anew", trouble)
            self._leave(connection)
        return metrics

    def _check_mismatch(self, metrics: dict[str, float]) -> None:
        mismatch = metrics.get("logprob_mismatch", 0.0)
        told = f"the sampler's and the trainer's log-probabilities differ by {mismatch:.4f} on average"
        if mismatch > self.settings.mismatch_limit:
            raise TrainwrightError(
                f"{told}, over agent.tinker.mismatch_limit = {self.settings.mismatch_limit:g}; the step was not taken. "
                "See 'Mismatch' in docs/tinker.md"
            )
        if mismatch > self.settings.mismatch_warning:
            log.warning("%s (at most %.4f)", told, metrics["logprob_mismatch_max"])

    async def _insist(self, doing: str, work: Callable[[Connection], Awaitable[T]], *, alone: bool = False) -> T:
        """Return the result of work on a connection, tried again on a new one until the server's time is up.

        `alone` keeps other work that changes weights out. Raises `TrainwrightError` when patience ends: the run stops,
        and goes on where it was when it is started again.
        """
        from trainwright.agent.tinker_faults import Trouble

        limits, first, stubborn = self.settings.deadlines, None, 0
        while True:
            connection = None
            try:
                if alone:
                    async with self._training:
                        connection = await self._connected()
                        return await work(connection)
                connection = self._connection
                if connection is None:
                    async with self._training:
                        connection = await self._connected()
                return await work(connection)
            except Trouble as trouble:
                self._leave(connection)
                first = first or time.monotonic()
                stubborn += not trouble.transient
                tried = time.monotonic() - first
                patience = limits.patience if self._probed else limits.start
                if stubborn >= STUBBORN or tried >= patience:
                    hint = "" if self._probed else "; it has not answered yet: see 'Versions' in docs/tinker.md"
                    raise TrainwrightError(
                        f"{doing} failed: {trouble}{hint} (after {tried / 60:.0f} minutes of trying). "
                        "Nothing is lost: the same command goes on from here"
                    ) from None
                log.warning("%s; trying again", trouble)
            await asyncio.sleep(limits.pause)

    async def _connected(self) -> Connection:
        """Return the connection, a new one from the last saved state where there is none."""
        from trainwright.agent.tinker_client import Connection

        if self._connection is None:
            while self._left:  # their sessions hold models that the server may have to free for the new one
                self._left.pop().abandon()
            connection = await Connection.open(self.settings, self.state if self.state.path else None, self.seed)
            try:
                await connection.probe() if not self._probed else None
            except BaseException:
                connection.abandon()
                raise
            self._probed = True
            self._connection = connection
        return self._connection

    def _leave(self, connection: Connection | None) -> None:
        """Take no new work to a connection. It is closed when the next one is made: an update may still be using it."""
        if connection is not None and self._connection is connection:
            self._connection = None
            self._left.append(connection)

    def save(self, folder: Path) -> None:
        """Write where the last saved state is on the server; the state itself was saved by the update."""
        self.state.write(folder)
        self._folder = folder

    def load(self, folder: Path) -> None:
        """Go back to what `save` wrote; raise `ConfigError` when it is of another model or no training state."""
        state = read_state(folder)
        mine = (self.settings.base_model, self.settings.rank)
        if (state.base_model, state.rank) != mine:
            raise ConfigError(f"{folder}: a checkpoint of {state.base_model} with rank {state.rank}, not of {mine[0]}")
        self.state, self._folder = state, folder
        self._leave(self._connection)

    async def close(self) -> None:
        """Make the last state permanent and finish the sessions; what fails is said, not raised."""
        from trainwright.agent.tinker_faults import Trouble

        try:
            if self.state.expires is not None and self._connection is None:
                log.warning(
                    "not connected, so the last state stays as it is: %s, %s", self.state.path, self.state.kept_until
                )
            elif self.state.expires is not None and self._connection is not None:
                await self._connection.keep(self.state.path)
                self.state = replace(self.state, expires=None)
                if self._folder is not None and read_state(self._folder).path == self.state.path:
                    self.state.write(self._folder)
            if self._connection is not None:
                await self._connection.close()
        except (Trouble, TrainwrightError) as error:
            log.warning("%s; %s is %s", error, self.state.path, self.state.kept_until)
        finally:
            for connection in self._left:
                connection.abandon()
            self._connection, self._left = None, []


def _length(example: Example) -> int:
    return len(example.completion.prompt_tokens) + len(example.completion.tokens) - 1


def _settings(config: RunConfig) -> TinkerSettings:
    settings = config.agent.tinker
    if settings is None:
        raise ConfigError("agent.backend = 'tinker' needs a table [agent.tinker] with at least base_model")
    if config.agent.temperature != 1.0:
        raise ConfigError("agent.temperature must be 1 with agent.backend = 'tinker': the trainer's policy is at 1")
    return settings


def _check_key() -> None:
    """Raise `ConfigError` unless there is a key where the SDK looks for one, in the form that it takes."""
    key = os.environ.get("TINKER_API_KEY", "")
    if key:
        if not key.startswith(("tml-", "eyJ")):
            raise ConfigError(f"TINKER_API_KEY is not a Tinker key: {KEY_HELP}")
    elif not os.environ.get("TINKER_CREDENTIAL_CMD") and not Path("~/.tinker/credentials.json").expanduser().exists():
        raise ConfigError(f"there is no key for Tinker: {KEY_HELP}")


def _check_network(settings: TinkerSettings) -> None:
    """Raise `ConfigError` unless the server answers, whatever it says: the SDK would try for five minutes."""
    import httpx
    from tinker.lib.base_url import resolve_base_url

    url = resolve_base_url(settings.base_url or None)
    try:
        httpx.get(f"{url}/api/v1/healthz", timeout=20.0)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        reason = str(error) or type(error).__name__
        raise ConfigError(f"the server {url} can't be reached ({reason}); check the network and base_url") from None
