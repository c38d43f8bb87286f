"""A tokenizer fitted to a few job texts and a policy with random weights: small enough to make in a moment."""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Callable, Iterator

import pytest
from tokenizers import Tokenizer

from trainwright.agent.brief import compact_brief
from trainwright.agent.corpus import synthetic_job, synthetic_task
from trainwright.agent.local import VOCABULARY, LocalPolicy, trainable_model
from trainwright.agent.tokenizer import fit_tokenizer
from trainwright.config import AgentConfig
from trainwright.messages import Message


@pytest.fixture(scope="session")
def job_texts() -> list[str]:
    rng = random.Random(0)
    return [synthetic_job(synthetic_task(rng), rng) for _ in range(150)]


@pytest.fixture(scope="session")
def tokenizer(job_texts: list[str]) -> Tokenizer:
    return fit_tokenizer(job_texts, VOCABULARY)


@pytest.fixture(scope="session")
def random_weights() -> bytes:
    return trainable_model(seed=3).save()


MakePolicy = Callable[..., LocalPolicy]


@pytest.fixture
def make_policy(tokenizer: Tokenizer, random_weights: bytes) -> MakePolicy:
    """Return a function that makes a policy with the same random weights; settings of the agent as keywords."""

    def make(weights: bytes = random_weights, **settings: object) -> LocalPolicy:
        return LocalPolicy(tokenizer, weights, AgentConfig.model_validate({"max_tokens": 24} | settings))

    return make


@pytest.fixture(scope="session")
def briefs() -> list[list[Message]]:
    rng = random.Random(5)
    return [compact_brief(synthetic_task(rng)) for _ in range(3)]


@pytest.fixture(autouse=True)
def no_client_outlives_its_test() -> Iterator[None]:
    """Close the Tinker SDK's clients: their heartbeats would go on and reach whatever fake gets their server's port."""
    yield
    if "tinker" in sys.modules:
        from tinker.lib.internal_client_holder import InternalClientHolder

        for holder in [one for one in gc.get_objects() if type(one) is InternalClientHolder]:
            holder.close()
