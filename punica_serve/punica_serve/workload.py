"""Request populations and lengths for tests and benchmarks, after Punica's evaluation (section 7). Free of torch."""

import math
from dataclasses import dataclass
from enum import StrEnum
from importlib.resources import files
from statistics import NormalDist
from typing import NamedTuple

import msgspec
import numpy as np

from punica_serve.learned_types import learned

#: Serverless applications behind `maf_like`, about as many as a day of the published trace has.
_NUM_APPLICATIONS = 16_384


class Population(StrEnum):
    """How requests spread over adapters."""

    DISTINCT = "distinct"
    """Every request has its own adapter."""
    UNIFORM = "uniform"
    """ceil(sqrt(n)) adapters, equally popular."""
    SKEWED = "skewed"
    """Each adapter is 1.5 times as popular as the next (the paper calls this Zipf-1.5; it is geometric)."""
    IDENTICAL = "identical"
    """All requests share one adapter."""


class RequestLength(NamedTuple):
    """Lengths of one request, in tokens."""

    prompt: int
    output: int


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in order of arrival: their lengths, and their adapters in each population."""

    lengths: tuple[RequestLength, ...]
    adapters: dict[Population, tuple[int, ...]]


class _WorkloadFile(msgspec.Struct, frozen=True):
    prompt_lens: tuple[int, ...]
    output_lens: tuple[int, ...]
    populations: dict[Population, tuple[int, ...]]


def shipped_workload(num_requests: int = 1000) -> Workload:
    """The first of the thousand requests that come with the package, as used in all comparisons with other systems.

    The numbers are shipped because other versions of numpy round a few of `request_lengths` differently. Raises
    ValueError for more requests than there are.
    """
    text = (files("punica_serve") / "workload_sharegpt_like_1000.json").read_bytes()
    file = msgspec.json.decode(text, type=learned(_WorkloadFile))
    if not 0 < num_requests <= len(file.prompt_lens):
        raise ValueError(f"the shipped workload has {len(file.prompt_lens)} requests, asked for {num_requests}")
    lengths = tuple(map(RequestLength, file.prompt_lens, file.output_lens))
    adapters = {population: indices[:num_requests] for population, indices in file.populations.items()}
    return Workload(lengths[:num_requests], adapters)


def counts(population: Population, num_requests: int) -> list[int]:
    """The number of requests of each adapter, most popular first; they sum to `num_requests`."""
    match population:
        case Population.DISTINCT:
            return [1] * num_requests
        case Population.UNIFORM:
            num_adapters = math.ceil(math.sqrt(num_requests))
            return [len(range(adapter, num_requests, num_adapters)) for adapter in range(num_adapters)]
        case Population.SKEWED:
            return _skewed_counts(num_requests)
        case Population.IDENTICAL:
            return [num_requests] if num_requests else []


def adapter_indices(population: Population, num_requests: int, seed: int) -> list[int]:
    """The adapter of each request in order of arrival: `counts`, shuffled by `seed`; adapter 0 is the most popular."""
    adapter_counts = counts(population, num_requests)
    indices = np.repeat(np.arange(len(adapter_counts)), adapter_counts)
    order: list[int] = np.random.default_rng(seed).permutation(indices).tolist()
    return order if population is not Population.DISTINCT else sorted(order)


def request_lengths(num_requests: int, seed: int) -> list[RequestLength]:
    """Lengths like ShareGPT's: log-normal, with mean prompt 160 and mean output 101 tokens after clipping."""
    rng = np.random.default_rng(seed)
    prompts = _clipped_lognormal(rng, num_requests, mu=4.4922, sigma=1.1, longest=1024)
    outputs = _clipped_lognormal(rng, num_requests, mu=4.1910, sigma=1.0, longest=512)
    return list(map(RequestLength, prompts, outputs))


def conversation_lengths(
    num_requests: int, seed: int, *, mean_earlier_turns: float, longest_prompt: int
) -> list[RequestLength]:
    """`request_lengths` of chats: each prompt contains the earlier turns. With 0 turns they are `request_lengths`.

    The number of earlier turns is geometric; each has a prompt and an answer of `request_lengths`' own distribution.
    """
    own = request_lengths(num_requests, seed)
    if mean_earlier_turns == 0:
        return [RequestLength(min(length.prompt, longest_prompt), length.output) for length in own]
    rng = np.random.default_rng((seed, 1))
    num_turns = rng.geometric(1 / (1 + mean_earlier_turns), num_requests) - 1
    turns = np.array(request_lengths(int(num_turns.sum()), seed + 1)).reshape(-1, 2).sum(axis=1)
    ends = np.concatenate(([0], np.cumsum(turns)))
    last = np.cumsum(num_turns)
    history = ends[last] - ends[last - num_turns]
    prompts = np.minimum(history + [length.prompt for length in own], longest_prompt).tolist()
    return [RequestLength(prompt, length.output) for prompt, length in zip(prompts, own, strict=True)]


def alpaca_like_lengths(num_requests: int, seed: int) -> list[RequestLength]:
    """Lengths like those of Stanford Alpaca's instructions and answers, in tokens.

    A plain fit, not the data set: log-normal with the means that vLLM's paper (SOSP 2023, section 6.1) gives, 19.31 for
    prompts and 58.45 for answers. The spreads, 0.5 and 1.0, are assumed, and a few long answers are cut at 512.
    """
    rng = np.random.default_rng(seed)
    prompts = _clipped_lognormal(rng, num_requests, mu=math.log(19.31) - 0.5**2 / 2, sigma=0.5, longest=256)
    outputs = _clipped_lognormal(rng, num_requests, mu=math.log(58.45) - 1.0**2 / 2, sigma=1.0, longest=512)
    return list(map(RequestLength, prompts, outputs))


def maf_like_rates(num_applications: int) -> list[float]:
    """Invocations per hour of serverless applications, fewest first: the evenly spaced quantiles of a log-normal.

    It is fitted to two published quantiles of the Azure Functions trace (Shahrad et al., "Serverless in the Wild", ATC
    2020): 45 % of applications are invoked once an hour or less, and 81 % once a minute or less. The trace's most
    popular 18.6 % get 99.6 % of all invocations; here they get 99.9 %.
    """
    normal = NormalDist()
    sigma = math.log(60) / (normal.inv_cdf(0.81) - normal.inv_cdf(0.45))
    fitted = NormalDist(-sigma * normal.inv_cdf(0.45), sigma)
    return [math.exp(fitted.inv_cdf((number + 0.5) / num_applications)) for number in range(num_applications)]


def maf_like(num_adapters: int, seed: int) -> list[float]:
    """The share of all requests that each adapter gets in a trace like that of Azure Functions; they sum to 1.

    The applications of `maf_like_rates`, in an order drawn by ``seed``, are dealt to the adapters in turn.
    """
    num_each = -(-_NUM_APPLICATIONS // num_adapters)
    rates = np.random.default_rng(seed).permutation(maf_like_rates(num_each * num_adapters))
    weights = rates.reshape(num_each, num_adapters).sum(axis=0)
    shares: list[float] = (weights / weights.sum()).tolist()
    return shares


def popularity(population: Population, num_adapters: int) -> list[float]:
    """The share of an endless stream of requests that each adapter gets; the shares sum to 1.

    In Population.DISTINCT no adapter is used twice, so its shares are equal, like those of Population.UNIFORM.
    """
    match population:
        case Population.DISTINCT | Population.UNIFORM:
            weights = np.ones(num_adapters)
        case Population.SKEWED:
            weights = 1.5 ** -np.arange(num_adapters, dtype=np.float64)
        case Population.IDENTICAL:
            weights = np.eye(1, num_adapters)[0]
    shares: list[float] = (weights / weights.sum()).tolist()
    return shares


def _skewed_counts(num_requests: int) -> list[int]:
    """floor(1.5^k) for k = 0, 1, ... while they fit, then one adapter with the rest, as in Punica's benchmarks."""
    adapter_counts: list[int] = []
    popularity, remaining = 1.0, num_requests
    while remaining:
        adapter_counts.append(min(int(popularity), remaining))
        remaining -= adapter_counts[-1]
        popularity *= 1.5
    return sorted(adapter_counts, reverse=True)


def _clipped_lognormal(rng: np.random.Generator, size: int, *, mu: float, sigma: float, longest: int) -> list[int]:
    lengths: list[int] = np.clip(np.rint(rng.lognormal(mu, sigma, size)), 4, longest).astype(int).tolist()
    return lengths
