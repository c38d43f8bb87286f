"""The embedded student: a character-level transformer of about 0.1 M parameters, on one CPU thread.

Sampling and log-probabilities take prompts in runs of equal ones (the completions of one group) and read each
prompt once. Letters for shapes: B sequences = G groups x K members, P prompt tokens, T completion tokens, S cache
positions, V vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import safetensors.torch
import torch
from torch import Tensor

from trainwright.messages import Message
from trainwright.students.nano_model import (
    MASKED,
    TARGETS,
    Adapter,
    NanoConfig,
    Network,
    Weights,
    from_state_dict,
    random_weights,
    rotary_turns,
    runs_of_equal,
    to_state_dict,
)
from trainwright.students.student import Completions, UnreadablePrompt

ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789 :=+-,.<>|/?"
PAD, END = 0, 1
MAX_PROMPT = 48  # characters
PACKED = 128  # completion tokens in one packed sequence, at most: attention computes the scores it masks as well
_IDS = {character: index for index, character in enumerate(ALPHABET, start=2)}

CONFIGS = {
    config.name: config
    for config in (
        NanoConfig("nano-64", hidden=64, layers=2, heads=4, head_dim=16, intermediate=160, vocab=len(ALPHABET) + 2),
        NanoConfig("nano-48", hidden=48, layers=2, heads=3, head_dim=16, intermediate=128, vocab=len(ALPHABET) + 2),
    )
}


class NanoStudent:
    """The `Student` protocol on a `NanoConfig`. Made from a state dict; `NanoStudent.untrained` draws one."""

    def __init__(self, config: NanoConfig, state: Mapping[str, Tensor]) -> None:
        """Raise `ValueError` when the state dict does not fit the configuration."""
        self.name = config.name
        self.config = config
        self._base: Weights = from_state_dict(config, state)
        self._weights = self._base
        self._adapter: Adapter | None = None
        self._turns = rotary_turns(config)

    @classmethod
    def untrained(cls, name: str, seed: int) -> NanoStudent:
        """Return a randomly initialised student of a named size."""
        return cls(CONFIGS[name], to_state_dict(random_weights(CONFIGS[name], seed)))

    def fresh(self) -> NanoStudent:
        """Return a copy that shares the base weights, which nothing writes to, and has no adapter."""
        copy = object.__new__(NanoStudent)
        copy.name, copy.config, copy._base, copy._turns = self.name, self.config, self._base, self._turns
        copy._weights, copy._adapter = self._base, None
        return copy

    # Text

    def encode(self, messages: Sequence[Message]) -> list[int]:
        """Return the characters of the one user message and the end token, after which the reply starts."""
        if len(messages) != 1 or messages[0]["role"] != "user":
            roles = ", ".join(message["role"] for message in messages) or "none"
            raise UnreadablePrompt(f"{self.name} reads exactly one user message and no system prompt; got: {roles}")
        text = messages[0]["content"]
        if len(text) > MAX_PROMPT:
            raise UnreadablePrompt(f"the prompt has {len(text)} characters; {self.name} reads at most {MAX_PROMPT}")
        for position, character in enumerate(text):
            if character not in _IDS:
                raise UnreadablePrompt(
                    f"character {character!r} at position {position} of the prompt is not in the alphabet of "
                    f"{self.name}: {ALPHABET!r}"
                )
        return [*(_IDS[character] for character in text), END]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the characters before the first end token."""
        characters = []
        for token in tokens:
            if token == END:
                break
            if token != PAD:
                characters.append(ALPHABET[token - 2])
        return "".join(characters)

    # Weights

    def add_adapter(self, rank: int, alpha: float, target: str, seed: int) -> None:
        """See `Student.add_adapter`. Rank 0 trains a copy of the base weights."""
        if target not in TARGETS:
            raise ValueError(f"unknown adapter target {target!r}; known: {', '.join(TARGETS)}")
        if rank:
            self._adapter = Adapter(self.config, rank, alpha, target, seed)
        else:
            self._weights = {name: torch.nn.Parameter(tensor.clone()) for name, tensor in self._base.items()}

    def parameters(self) -> list[torch.nn.Parameter]:
        """Return the trainable parameters, stacked over layers; none before `add_adapter`."""
        if self._adapter is not None:
            return [factor for pair in self._adapter.factors.values() for factor in pair]
        return [tensor for tensor in self._weights.values() if isinstance(tensor, torch.nn.Parameter)]

    def state_dict(self) -> dict[str, Tensor]:
        """Return all weights, a merged adapter included, under the names of `Qwen3ForCausalLM`."""
        weights = self._weights
        if self._adapter is not None:
            weights = {name: self._adapter.merge(name, tensor) for name, tensor in weights.items()}
        return to_state_dict(weights)

    def save(self) -> bytes:
        """Return the adapter under PEFT's names, with its rank, alpha and target as metadata; else all weights.

        The same weights give the same bytes (safetensors writes several metadata keys in any order: there is one).
        """
        adapter = self._adapter
        state = self.state_dict() if adapter is None else adapter.state_dict()
        facts = {"student": self.name} | ({} if adapter is None else adapter.facts())
        return bytes(safetensors.torch.save(state, {"trainwright": json.dumps(facts)}))

    def load(self, data: bytes) -> None:
        """Load what `save` returned; raise `ValueError` when it does not fit or holds a value that is not finite."""
        try:
            state = safetensors.torch.load(data)
            header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
            facts = dict(json.loads(header["__metadata__"]["trainwright"]))
        except (safetensors.SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"not the saved weights of a student: {error!r}") from error
        if facts.get("student") != self.name:
            raise ValueError(f"weights do not fit {self.name}: they are of {facts.get('student')!r}")
        if "rank" in facts:
            self._adapter = Adapter.read(self.config, state, facts)
        else:
            self._weights, self._adapter = from_state_dict(self.config, state), None

    def _network(self, temperature: float) -> Network:
        return Network(self.config, self._weights, self._adapter, temperature)

    # Sampling and log-probabilities

    def sample(
        self, prompts: Sequence[Sequence[int]], *, temperature: float, max_tokens: int, generator: torch.Generator
    ) -> Completions:
        """See `Student.sample`. The uniform number of (token position, prompt index) depends on the generator only,
        so that two sets of weights are compared on common random numbers."""
        with torch.inference_mode():
            parts = self._sample(prompts, temperature, max_tokens, generator)
        return Completions(*(part.clone() for part in parts))  # a clone may take part in a backward pass

    def _sample(
        self, prompts: Sequence[Sequence[int]], temperature: float, max_tokens: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        config, count = self.config, len(prompts)
        uniforms_TB1 = torch.rand(max_tokens, count, 1, generator=generator)
        ids_GP, padding_GP, members = _groups(prompts, max_tokens)
        groups, prompt_length = ids_GP.shape
        self._check_length(prompt_length + max_tokens)
        network = self._network(temperature)
        size = (groups, config.heads, prompt_length + max_tokens * members, config.head_dim)
        cache = [(torch.empty(size), torch.empty(size)) for _ in network.layers]

        # Positions are cache columns: rotary attention sees only differences, so left padding shifts nothing.
        turns = self._turns[:prompt_length].repeat(groups, 1, 1, 1)
        bias_GPP = (~_causal(prompt_length) | padding_GP[:, None]) * MASKED
        x_GH = network.hidden(ids_GP, turns, bias_GPP, prompt_length - 1, cache)[:, 0]
        logits_BV = network.logits(x_GH).repeat_interleave(members, 0)
        # Step t adds `members` columns, one a member; a member sees the prompt and its own.
        other_KS = (~torch.eye(members, dtype=torch.bool)).repeat(1, max_tokens)
        forbidden_GKS = torch.cat([padding_GP[:, None].expand(-1, members, -1), other_KS.expand(groups, -1, -1)], -1)
        bias = (forbidden_GKS * MASKED).repeat_interleave(config.heads, 0)

        tokens_TB = torch.empty(max_tokens, count, dtype=torch.long)
        logits_TBV = torch.empty(max_tokens, *logits_BV.shape)
        ended_B = torch.zeros(count, dtype=torch.bool)
        for step in range(max_tokens):
            if step:
                start = prompt_length + (step - 1) * members
                turn = self._turns[prompt_length + step - 1]
                logits_BV = network.logits(_decode(network, tokens_TB[step - 1], turn, cache, start, bias))
            logits_TBV[step] = logits_BV
            cdf_BV = logits_BV.softmax(-1).cumsum(-1)
            drawn_B1 = torch.searchsorted(cdf_BV, uniforms_TB1[step] * cdf_BV[:, -1:])
            tokens_TB[step] = drawn_B1[:, 0].clamp_(max=config.vocab - 1)
            ended_B |= tokens_TB[step] == END
            if ended_B.all():
                break
        tokens_TB = tokens_TB[: step + 1]
        mask_BT = _mask(tokens_TB.t())
        logprobs_TB = logits_TBV[: step + 1].log_softmax(-1).gather(-1, tokens_TB[..., None])[..., 0]
        return torch.where(mask_BT > 0, tokens_TB.t(), PAD), mask_BT, logprobs_TB.t() * mask_BT, ended_B

    def logprobs(
        self, prompts: Sequence[Sequence[int]], tokens_BT: Tensor, *, temperature: float
    ) -> tuple[Tensor, Tensor]:
        """See `Student.logprobs`. Both are 0 after the first end token; entropies carry no gradient."""
        ids_GP, padding_GP, members = _groups(prompts, tokens_BT.shape[1])
        (groups, prompt_length), (count, length) = ids_GP.shape, tokens_BT.shape
        self._check_length(prompt_length + length)
        mask_BT = _mask(tokens_BT).bool()

        # Pack: a completion token that is followed by another goes to the next free column of its group.
        inputs_GM = mask_BT[:, 1:].reshape(groups, -1)
        column_GM = inputs_GM.cumsum(-1) + (prompt_length - 1)
        packed_length = prompt_length + int(inputs_GM.sum(-1).max()) if length > 1 else prompt_length
        group_N, place_N = inputs_GM.nonzero(as_tuple=True)
        column_N = column_GM[group_N, place_N]
        ids_GS = torch.full((groups, packed_length), PAD)
        ids_GS[:, :prompt_length] = ids_GP
        ids_GS[group_N, column_N] = tokens_BT[:, :-1].reshape(groups, -1)[group_N, place_N]
        positions_GS = torch.arange(packed_length).repeat(groups, 1)
        member_GS = torch.full((groups, packed_length), -1)
        if length > 1:
            positions_GS[group_N, column_N] = prompt_length + place_N % (length - 1)
            member_GS[group_N, column_N] = place_N // (length - 1)
        forbidden = ~_causal(packed_length) | (member_GS[:, None, :] != member_GS[:, :, None])
        forbidden[:, :, :prompt_length] = padding_GP[:, None, :] | ~_causal(packed_length)[:, :prompt_length]

        # The first token of each member is predicted at the last prompt column, the others at the one before them.
        source_BT = torch.zeros(count, length, dtype=torch.long)
        source_BT[:, 1:] = column_GM.view(count, length - 1) - (prompt_length - 1)
        kept = packed_length - (prompt_length - 1)
        source_BT += torch.arange(groups).repeat_interleave(members)[:, None] * kept

        network = self._network(temperature)
        x_GSH = network.hidden(ids_GS, self._turns[positions_GS.flatten()], forbidden * MASKED, prompt_length - 1)
        x_NH = x_GSH.flatten(0, 1)[source_BT[mask_BT]]
        logprobs_NV = network.logits(x_NH).log_softmax(-1)
        logprobs_BT = torch.zeros(count, length)
        logprobs_BT[mask_BT] = logprobs_NV.gather(1, tokens_BT[mask_BT][:, None])[:, 0]
        entropies_BT = torch.zeros(count, length)
        with torch.no_grad():
            entropies_BT[mask_BT] = -(logprobs_NV.exp() * logprobs_NV).sum(-1)
        return logprobs_BT, entropies_BT

    def _check_length(self, tokens: int) -> None:
        if tokens > self.config.context:
            raise ValueError(
                f"{tokens} prompt and completion tokens exceed the {self.config.context} that {self.name} holds"
            )


def _decode(
    network: Network, ids_B: Tensor, turn: Tensor, cache: list[tuple[Tensor, Tensor]], start: int, bias: Tensor
) -> Tensor:
    """Return the last hidden states (B, H) of one more token a sequence; its keys and values go to the cache, whose
    first `start` columns are full."""
    groups, heads, _, head_dim = cache[0][0].shape
    members = len(ids_B) // groups
    stop = start + members
    bias = bias[:, :, :stop]
    x_BH = network.embedded(ids_B)
    for index, (keys, values) in enumerate(cache):
        projected = network.project(index, ids_B, x_BH, turn)
        q, k, v = (part.view(groups, members, heads, head_dim).transpose(1, 2) for part in projected)
        keys[:, :, start:stop] = k
        values[:, :, start:stop] = v
        q = q.reshape(groups * heads, members, head_dim)
        scores = torch.baddbmm(bias, q, keys.flatten(0, 1)[:, :stop].transpose(1, 2))
        attended = torch.bmm(scores.softmax(-1), values.flatten(0, 1)[:, :stop])
        joined = attended.view(groups, heads, members, head_dim).transpose(1, 2).reshape(len(ids_B), -1)
        x_BH = network.finish(index, x_BH, joined)
    return x_BH


def _groups(prompts: Sequence[Sequence[int]], completion_length: int) -> tuple[Tensor, Tensor, int]:
    """Return the prompts without their repetitions, left-padded (G, P), where they are padding, and members a group."""
    members = runs_of_equal([tuple(prompt) for prompt in prompts], PACKED // completion_length)
    unique = prompts[::members]
    longest = max(map(len, unique))
    widths = [longest - len(prompt) for prompt in unique]
    rows = [[PAD] * width + list(prompt) for width, prompt in zip(widths, unique, strict=True)]
    return torch.tensor(rows), torch.arange(longest) < torch.tensor(widths)[:, None], members


def _causal(length: int) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool).tril()


def _mask(tokens_BT: Tensor) -> Tensor:
    """Return 1.0 up to and including the first end token."""
    ended_BT = (tokens_BT == END).cumsum(-1)
    return ((ended_BT == 0) | ((ended_BT == 1) & (tokens_BT == END))).float()
