"""SLOs of simulated requests, by `simulation.slo`."""

from collections.abc import Callable

from punica_serve.config.cluster import ClusterConfig
from punica_serve.config.simulation_section import SloConfig
from punica_serve.protocol import AdapterRef, Slo
from punica_serve.simulation.arrivals import Arrivals

#: The rank of requests that run the base model.
NO_RANK = 0


def slos_for(
    config: ClusterConfig,
    arrivals: Arrivals,
    adapters: tuple[AdapterRef, ...],
    unloaded_s: Callable[[int], float],
) -> tuple[Slo, ...]:
    """One for each request. ``unloaded_s`` is the time per token of a request alone on a GPU, by its adapter's rank.

    With `slo.scale` requests of one rank are promised the same time per token.
    """
    slo = config.simulation.slo
    ranks = [rank_of(adapters[number]) for number in arrivals.adapters] or [NO_RANK] * len(arrivals)
    per_token_s = dict.fromkeys(ranks, slo.time_per_token_s)
    if slo.scale is not None:
        per_token_s = {rank: slo.scale * unloaded_s(rank) for rank in sorted(set(ranks))}
    prompts = [length.prompt for length in arrivals.lengths]
    first_s = {num_tokens: _first_token_s(slo, num_tokens) for num_tokens in set(prompts)}
    return tuple(Slo(first_s[num_tokens], per_token_s[rank]) for num_tokens, rank in zip(prompts, ranks, strict=True))


def _first_token_s(slo: SloConfig, num_tokens: int) -> float | None:
    if slo.first_token_s is None:
        return None
    return slo.first_token_s + slo.first_token_s_per_1000_tokens * num_tokens / 1000


def rank_of(ref: AdapterRef) -> int:
    """The adapter's highest rank."""
    return max(ref.ranks.values())
