"""Where adapters are, while the scheduler can be reached."""

from collections.abc import Collection

from punica_frontend.adapters.cards import Residency
from punica_frontend.scheduler_link.scheduler_client import SchedulerClient
from punica_serve.errors import ClusterUnavailable


async def residencies(client: SchedulerClient, digests: Collection[str]) -> dict[str, Residency | None]:
    """Returns residencies by digest; None if the scheduler can't be reached."""
    if not digests:
        return {}
    try:
        somewhere = {where.digest: where for where in await client.residency(digests)}
    except ClusterUnavailable:
        return dict.fromkeys(digests)
    return {digest: Residency.of(somewhere.get(digest)) for digest in digests}


async def residency(client: SchedulerClient, digest: str) -> Residency | None:
    return (await residencies(client, (digest,)))[digest]
