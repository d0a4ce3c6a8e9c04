"""The requests of each workload: lengths, prompts and adapters. The same for the same arguments, on every machine."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Literal

import numpy as np

from punica_serve.errors import ConfigError
from punica_serve.workload import Population, RequestLength, adapter_indices, shipped_workload

WorkloadName = Literal["ours", "prompt_heavy", "answer_heavy", "shared_prefixes"]
#: grouped is the Distinct of shared prefixes: an adapter for each group.
PopulationName = Literal["distinct", "skewed", "base"]

POPULATIONS: tuple[PopulationName, ...] = ("distinct", "skewed", "base")

_SYSTEM_PROMPT_TOKENS = 1000
#: Requests with one system prompt and one adapter; they are adjacent.
GROUP_SIZE = 8
_OWN_TOKENS, _ANSWER_TOKENS = 160, 101
_LENGTHS = {"prompt_heavy": RequestLength(2048, 64), "answer_heavy": RequestLength(128, 1024)}
_MAX_REQUESTS = 1000

_SEED = 20231028


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """One request of a workload."""

    prompt_ids: tuple[int, ...]
    max_tokens: int
    #: Number of its adapter; None runs the base model.
    adapter: int | None


def requests_of(
    workload: WorkloadName, population: PopulationName, count: int, *, vocab_size: int, max_context: int
) -> list[ServedRequest]:
    """The first ``count`` requests of a workload, cut to fit the context. Raises ConfigError for too many."""
    if count > _MAX_REQUESTS:
        raise ConfigError(f"`--requests` is {count}; a workload has {_MAX_REQUESTS} at most", param="requests")
    rng = np.random.default_rng(_SEED)
    group_size = GROUP_SIZE if workload == "shared_prefixes" else 1
    num_groups = -(-count // group_size)
    lengths = [_cut(length, max_context) for length in _lengths(workload, count)]
    adapters = _adapters(population, num_groups)
    shared = min(_SYSTEM_PROMPT_TOKENS, max_context // 2) if group_size > 1 else 0
    prefixes = [_tokens(rng, shared, vocab_size) for _ in range(num_groups)]
    return [
        ServedRequest(
            (*prefixes[number // group_size], *_tokens(rng, length.prompt - shared, vocab_size))[: length.prompt],
            length.output,
            adapters[number // group_size],
        )
        for number, length in enumerate(lengths)
    ]


def random_requests(
    count: int, num_prompt_tokens: int, num_tokens: int, *, vocab_size: int, max_context: int
) -> list[ServedRequest]:
    """Requests of one adapter and one length, which is cut where the context does not hold it; no shared prefixes."""
    rng = np.random.default_rng(_SEED)
    length = _cut(RequestLength(num_prompt_tokens, num_tokens), max_context)
    return [ServedRequest(_tokens(rng, length.prompt, vocab_size), length.output, 0) for _ in range(count)]


def long_requests(
    population: PopulationName, num_tokens: int, *, vocab_size: int, max_context: int
) -> Iterator[ServedRequest]:
    """Prompts of so many tokens that share no prefix, with answers of one, without end. Raises ConfigError."""
    if num_tokens >= max_context:
        message = f"`--long-prompt` is {num_tokens}, and the context holds {max_context} with an answer; lower it"
        raise ConfigError(message, param="long_prompt")
    rng = np.random.default_rng(_SEED + 1)
    adapter = None if population == "base" else 0
    return (ServedRequest(_tokens(rng, num_tokens, vocab_size), 1, adapter) for _ in repeat(None))


def cut_in_words(workload: WorkloadName, count: int, max_context: int) -> str | None:
    """How the first ``count`` requests of a workload differ from what it is; None if the context holds them."""
    lengths = _lengths(workload, count)
    cut = [_cut(length, max_context) for length in lengths]
    if cut == list(lengths):
        return None
    prompt, answer = (max(tokens) for tokens in zip(*((each.prompt, each.output) for each in cut), strict=True))
    limit = f"the context of {max_context:,d} tokens"
    return f"{workload}: requests are cut to {limit}, prompts to {prompt:,d} at most, answers to {answer:,d}"


def num_adapters(requests: Sequence[ServedRequest]) -> int:
    """Adapters that these requests need: their numbers are below it."""
    return 1 + max((request.adapter for request in requests if request.adapter is not None), default=-1)


def _lengths(workload: WorkloadName, count: int) -> Sequence[RequestLength]:
    if workload == "ours":
        return shipped_workload(count).lengths
    if workload == "shared_prefixes":
        return (RequestLength(_SYSTEM_PROMPT_TOKENS + _OWN_TOKENS, _ANSWER_TOKENS),) * count
    return (_LENGTHS[workload],) * count


def _cut(length: RequestLength, max_context: int) -> RequestLength:
    output = min(length.output, max_context // 2)
    return RequestLength(min(length.prompt, max_context - output), output)


def _adapters(population: PopulationName, num_groups: int) -> Sequence[int | None]:
    if population == "base":
        return (None,) * num_groups
    return adapter_indices(Population(population), num_groups, _SEED)


def _tokens(rng: np.random.Generator, count: int, vocab_size: int) -> tuple[int, ...]:
    ids: list[int] = rng.integers(vocab_size, size=max(count, 0)).tolist()
    return tuple(ids)
