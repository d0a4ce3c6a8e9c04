"""Requests of a simulation or a replay: their arrival times, lengths and adapters."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from punica_serve.config.simulation_section import ArrivalPopulation, ArrivalsConfig
from punica_serve.simulation.azure_trace import read_trace
from punica_serve.workload import (
    Population,
    RequestLength,
    alpaca_like_lengths,
    conversation_lengths,
    maf_like,
    popularity,
)


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Requests in order of arrival, in columns of equal length."""

    times_s: tuple[float, ...]
    lengths: tuple[RequestLength, ...]
    #: Numbers of the adapters; empty if all run the base model.
    adapters: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.times_s)


def arrivals_of(
    config: ArrivalsConfig, *, num_adapters: int, seed: int, rate_scale: float = 1.0, trace: Path | None = None
) -> Arrivals:
    """Random arrivals as configured, ``rate_scale`` times as many in a second; the same for the same seed.

    A ``trace``, a day of the Azure Functions trace, replaces rate and popularity for as long as the configured rate
    lasts; its functions are dealt to the adapters in turn. Raises ConfigError for a file that is none.
    """
    rng = np.random.default_rng(seed)
    if trace is None:
        times_s = _poisson([(second, per_s * rate_scale) for second, per_s in config.rate], rng)
        adapters = _adapters(config.population, len(times_s), num_adapters, seed, rng)
    else:
        counts = read_trace(trace, config.duration_s)
        times_s, functions = _replayed(counts, config.duration_s, rate_scale, rng)
        adapters = tuple((functions % num_adapters).tolist()) if num_adapters else ()
    return Arrivals(tuple(times_s.tolist()), tuple(_lengths(config, len(times_s), seed)), adapters)


def _lengths(config: ArrivalsConfig, count: int, seed: int) -> list[RequestLength]:
    lengths, long = _usual_lengths(config, count, seed), config.long_prompts
    if long is None:
        return lengths
    is_long = np.random.default_rng([seed, 1]).uniform(size=count) < long.share
    return [
        RequestLength(long.tokens, length.output) if each else length
        for length, each in zip(lengths, is_long, strict=True)
    ]


def _usual_lengths(config: ArrivalsConfig, count: int, seed: int) -> list[RequestLength]:
    longest = config.longest_prompt
    if config.lengths == "alpaca":
        drawn = alpaca_like_lengths(count, seed)
        return [RequestLength(min(length.prompt, longest), length.output) for length in drawn]
    return conversation_lengths(count, seed, mean_earlier_turns=config.earlier_turns, longest_prompt=longest)


def _poisson(rate: Sequence[tuple[float, float]], rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """A Poisson process of varying rate, by thinning one of the highest rate."""
    seconds, rates = zip(*rate, strict=True)
    highest = max(rates)
    times_s = np.sort(rng.uniform(0.0, seconds[-1], rng.poisson(highest * seconds[-1])))
    kept = rng.uniform(0.0, highest, len(times_s)) < np.interp(times_s, seconds, rates)
    result: npt.NDArray[np.float64] = times_s[kept]
    return result


def _adapters(
    population: ArrivalPopulation, count: int, num_adapters: int, seed: int, rng: np.random.Generator
) -> tuple[int, ...]:
    if not num_adapters:
        return ()
    if population == "distinct":
        return tuple(number % num_adapters for number in range(count))
    maf = population == "maf_like"
    shares = maf_like(num_adapters, seed) if maf else popularity(Population(population), num_adapters)
    return tuple(rng.choice(num_adapters, size=count, p=shares).tolist())


def _replayed(
    counts: npt.NDArray[np.int64], duration_s: float, rate_scale: float, rng: np.random.Generator
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Times and functions of a trace's invocations, in order. ``counts`` is [functions, minutes].

    Within its minute each comes at a random time. A count that ``rate_scale`` makes fractional is rounded up or down at
    random, so that the mean is right.
    """
    counts = np.floor(counts * rate_scale + rng.uniform(size=counts.shape)).astype(np.int64)
    functions, minutes = (np.repeat(numbers.ravel(), counts.ravel()) for numbers in np.indices(counts.shape))
    times_s = 60.0 * (minutes + rng.uniform(size=len(minutes)))
    order = np.argsort(times_s)
    order = order[times_s[order] < duration_s]
    return times_s[order], functions[order]
