"""SLOs of simulated requests, by `simulation.slo`."""

from collections.abc import Callable

from punica_serve.config.cluster import ClusterConfig
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

    With `slo.scale` requests of one rank share a promise.
    """
    slo = config.simulation.slo
    if slo.scale is None:
        return (Slo(slo.first_token_s, slo.time_per_token_s),) * len(arrivals)
    ranks = [rank_of(adapters[number]) for number in arrivals.adapters] or [NO_RANK] * len(arrivals)
    by_rank = {rank: Slo(slo.first_token_s, slo.scale * unloaded_s(rank)) for rank in sorted(set(ranks))}
    return tuple(by_rank[rank] for rank in ranks)


def rank_of(ref: AdapterRef) -> int:
    """The adapter's highest rank."""
    return max(ref.ranks.values())
