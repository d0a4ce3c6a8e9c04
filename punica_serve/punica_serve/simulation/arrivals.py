"""Requests of a simulation or a replay: their arrival times, lengths and adapters."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from punica_serve.config.simulation_section import ArrivalsConfig
from punica_serve.workload import Population, RequestLength, conversation_lengths, popularity


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Requests in order of arrival, in columns of equal length."""

    times_s: tuple[float, ...]
    lengths: tuple[RequestLength, ...]
    #: Numbers of the adapters; empty if all run the base model.
    adapters: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.times_s)


def arrivals_of(config: ArrivalsConfig, *, num_adapters: int, seed: int) -> Arrivals:
    """Random arrivals as configured, the same for the same seed."""
    rng = np.random.default_rng(seed)
    times_s = _poisson(config.rate, rng)
    lengths = conversation_lengths(
        len(times_s), seed, mean_earlier_turns=config.earlier_turns, longest_prompt=config.longest_prompt
    )
    adapters = _adapters(Population(config.population), len(times_s), num_adapters, rng)
    return Arrivals(tuple(times_s.tolist()), tuple(lengths), adapters)


def _poisson(rate: Sequence[tuple[float, float]], rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """A Poisson process of varying rate, by thinning one of the highest rate."""
    seconds, rates = zip(*rate, strict=True)
    highest = max(rates)
    times_s = np.sort(rng.uniform(0.0, seconds[-1], rng.poisson(highest * seconds[-1])))
    kept = rng.uniform(0.0, highest, len(times_s)) < np.interp(times_s, seconds, rates)
    result: npt.NDArray[np.float64] = times_s[kept]
    return result


def _adapters(population: Population, count: int, num_adapters: int, rng: np.random.Generator) -> tuple[int, ...]:
    if not num_adapters:
        return ()
    if population is Population.DISTINCT:
        return tuple(number % num_adapters for number in range(count))
    return tuple(rng.choice(num_adapters, size=count, p=popularity(population, num_adapters)).tolist())
