"""One connection to a Tinker server: a session, a training client and a sampler, with a deadline on every wait.

Checked against tinker 0.38.0. The SDK runs its own event loop on a daemon thread; its calls return futures at once,
except those that open a session, which block and are made on a daemon thread of ours. A connection is thrown away after
its first failure: the server takes a training client's requests strictly in order, so after a lost one it can't go on.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol, TypeVar

os.environ.setdefault("TINKER_TELEMETRY", "0")  # before the import: what a run does is nobody else's business

import tinker
from tinker import types

from trainwright.agent.tinker_faults import Overdue, Trouble, judge, listen, skew
from trainwright.agent.tinker_settings import TinkerSettings
from trainwright.agent.tinker_state import SavedState
from trainwright.errors import ConfigError, TrainwrightError

T = TypeVar("T")
LOCAL_KEY = "tml-local"
"""SkyRL's server asks for no key, the SDK does."""


class _Answer(Protocol[T]):
    """What the SDK's calls return."""

    def future(self) -> Future[T]: ...


Make = Callable[[], _Answer[T]]


class Connection:
    """An open session with a training client at a known state and a sampler of the same weights."""

    def __init__(self, settings: TinkerSettings, service: tinker.ServiceClient) -> None:
        self.settings = settings
        self.service = service
        self.hearing = listen()
        self.hearing.latest = ""
        self.training: tinker.TrainingClient
        self.sampler: tinker.SamplingClient
        self.weights = 0
        """Optimizer steps behind the sampler's weights."""
        self.context: int | None = None
        """Tokens of prompt and answer that the model holds, where the server says so."""

    @classmethod
    async def open(cls, settings: TinkerSettings, saved: SavedState | None, seed: int) -> Connection:
        """Return a connection whose policy is a saved state, optimizer included, or the start of a run.

        `seed` is that of a new LoRA's weights.
        Raises `ConfigError` for a model or state that the server does not have, `Trouble` for what may pass.
        """
        connection = cls(settings, tinker.ServiceClient(base_url=settings.base_url or None, api_key=key_for(settings)))
        try:
            await connection._train_from(saved, seed)
            await connection.refresh(saved.steps if saved is not None else 0)
        except BaseException:
            connection.abandon()
            raise
        return connection

    async def _train_from(self, saved: SavedState | None, seed: int) -> None:
        settings, service = self.settings, self.service
        if saved is not None:
            path, doing = saved.path, f"loading {saved.path} ({saved.kept_until})"
            make: Make[tinker.TrainingClient] = partial(service.create_training_client_from_state_with_optimizer, path)
        elif settings.start_from:
            doing = f"loading agent.tinker.start_from = {settings.start_from}"
            make = partial(service.create_training_client_from_state, settings.start_from)
        else:
            doing = f"making a LoRA of rank {settings.rank} on {settings.base_model}"
            make = partial(
                service.create_lora_training_client, settings.base_model, rank=settings.rank, seed=seed % 2**31
            )
        try:
            self.training = await self._within(settings.deadlines.start, doing, make, blocking=True)
        except Trouble as trouble:
            if trouble.status in (400, 404, 410, 422):  # no model is in use yet that could have been lost
                raise ConfigError(f"the server refuses: {trouble}") from None
            raise

    async def probe(self) -> None:
        """Sample one token and pass it through the trainer: is this a server that this SDK can talk to?

        Raises `ConfigError` when the model isn't offered, `TrainwrightError` when the protocol differs.
        """
        ask = lambda: self._rest().get_server_capabilities()  # noqa: E731
        rest = await self._within(self.settings.deadlines.start, "asking what it offers", ask, blocking=True)
        offers = {model.model_name: model for model in rest.supported_models if model.model_name}
        wanted = self.settings.base_model
        if offers and wanted not in offers:
            raise ConfigError(
                f"agent.tinker.base_model = {wanted!r} is not offered by the server; it has {', '.join(sorted(offers))}"
            )
        self.context = offers[wanted].max_context_length if wanted in offers else None
        sampled = await self.sample([0, 0], count=1, max_tokens=1, seed=0, stop=[])
        tokens = [0, *sampled.sequences[0].tokens]
        target = types.TensorData(data=tokens[1:], dtype="int64", shape=[len(tokens) - 1])
        weights = types.TensorData(data=[1.0] * (len(tokens) - 1), dtype="float32", shape=[len(tokens) - 1])
        datum = types.Datum(
            model_input=types.ModelInput.from_ints(tokens[:-1]),
            loss_fn_inputs={"target_tokens": target, "weights": weights},
        )
        doing = "a trial pass through the trainer"
        make = partial(self.training.forward, [datum], "cross_entropy")
        passed = await self._within(self.settings.deadlines.train, doing, make)
        if not passed.loss_fn_outputs or len(passed.loss_fn_outputs[0]["logprobs"].data) != len(tokens) - 1:
            raise skew(doing, "no log-probability for each position")

    async def sample(
        self, prompt: Sequence[int], *, count: int, max_tokens: int, seed: int, stop: list[int]
    ) -> types.SampleResponse:
        """Return `count` answers to one prompt at temperature 1, with their log-probabilities.

        `stop` are the tokens that end an answer.
        """
        parameters = types.SamplingParams(
            max_tokens=max_tokens, temperature=1.0, seed=seed % (2**31 - count), stop=stop or None
        )
        doing = f"sampling {count} answers to a prompt of {len(prompt)} tokens"
        make = partial(self.sampler.sample, types.ModelInput.from_ints(list(prompt)), count, parameters)
        response = await self._within(self.settings.deadlines.sample, doing, make)
        for sequence in response.sequences:
            if sequence.logprobs is None or len(sequence.logprobs) != len(sequence.tokens):
                raise skew(doing, "answers without a log-probability for each token")
        return response

    async def forward_backward(self, datums: list[types.Datum], loss: types.LossFnType) -> types.ForwardBackwardOutput:
        """Add the gradient of a loss over `datums` to the one that the server holds."""
        config = None
        if loss in ("ppo", "cispo"):
            config = {
                "clip_low_threshold": self.settings.clip_low,
                "clip_high_threshold": self.settings.clip_high,
            }
        doing = f"a {loss} pass over {len(datums)} examples"
        make = partial(self.training.forward_backward, datums, loss, config)
        return await self._within(self.settings.deadlines.train, doing, make)

    async def optim_step(self, learning_rate: float) -> dict[str, float]:
        """Take an AdamW step with the gradient that the server holds, and return what it says about it."""
        parameters = types.AdamParams(
            learning_rate=learning_rate, eps=1e-8, grad_clip_norm=self.settings.grad_clip_norm
        )
        make = partial(self.training.optim_step, parameters)
        response = await self._within(self.settings.deadlines.train, "an optimizer step", make)
        return {name: float(value) for name, value in (response.metrics or {}).items()}

    async def save(self, name: str, ttl_seconds: int | None) -> str:
        """Save weights and optimizer under a name that is new to this training client; return the path.

        A conflict means that a first request was carried out and its reply was lost; so may a missed deadline. Whether
        the state is there decides.
        """
        doing = f"saving the state {name}"
        try:
            make = partial(self.training.save_state, name, ttl_seconds=ttl_seconds)
            path: str = (await self._within(self.settings.deadlines.save, doing, make)).path
            return path
        except Trouble:
            path = f"tinker://{self.training.model_id}/weights/{name}"
            if await self.has(path):
                return path
            raise

    async def refresh(self, weights: int) -> None:
        """Let the sampler have the training client's weights, which are so many optimizer steps old.

        What it samples from is an ephemeral snapshot, not a checkpoint.
        """
        make = self.training.save_weights_and_get_sampling_client
        sampler = await self._within(self.settings.deadlines.start, "refreshing the sampler", make)
        self.sampler, self.weights = sampler, weights

    async def has(self, path: str) -> bool:
        """Return whether the server has a state; False too when it does not say."""
        doing = f"looking for {path}"
        try:
            look = lambda: self._rest().get_weights_info_by_tinker_path(path)  # noqa: E731
            await self._within(self.settings.deadlines.close, doing, look, blocking=True)
        except (Trouble, TrainwrightError):
            return False
        return True

    async def keep(self, path: str) -> None:
        """Take a state's expiry away."""
        keep = lambda: self._rest().set_checkpoint_ttl_from_tinker_path(path, None)  # noqa: E731
        await self._within(self.settings.deadlines.close, f"making {path} permanent", keep, blocking=True)

    async def close(self) -> None:
        """Finish the session, so that the server frees what it holds for us."""
        await self._within(self.settings.deadlines.close, "closing", partial(self.service.close, "success"))

    def abandon(self) -> None:
        """Finish the session without waiting for it."""
        threading.Thread(target=lambda: self.service.close("errored"), daemon=True).start()

    def _rest(self) -> tinker.RestClient:
        return tinker.RestClient(base_url=self.settings.base_url or None, api_key=key_for(self.settings))

    async def _within(self, seconds: float, doing: str, make: Make[T], *, blocking: bool = False) -> T:
        """Return the answer to the call that `make` sends, `blocking` before it does or not.

        Raises what `judge` makes of an error, or of no answer within so many seconds.
        """
        try:
            async with asyncio.timeout(seconds):
                answer = await on_thread(make) if blocking else make()
                return await asyncio.wrap_future(answer.future())
        except TimeoutError:
            overdue = Overdue(f"no answer within {seconds:g} s")
            raise judge(overdue, doing, self.hearing.latest) from None
        except Exception as error:
            raise judge(error, doing, self.hearing.latest) from error


def key_for(settings: TinkerSettings) -> str | None:
    """Return the key to use, or None where the SDK finds one by itself."""
    return LOCAL_KEY if settings.server == "skyrl" and not os.environ.get("TINKER_API_KEY") else None


async def on_thread(work: Callable[[], T]) -> T:
    """Return the result of blocking work on a daemon thread, which a process that ends does not wait for."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        outcome: tuple[Any, BaseException | None]
        try:
            outcome = (work(), None)
        except BaseException as error:
            outcome = (None, error)
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=run, daemon=True).start()
    return await done
