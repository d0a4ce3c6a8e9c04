"""Tracks the addresses of listening actors as Ray moves them."""

import asyncio
import logging

from punica_serve.cli.up.on_ray.placed_actor import PlacedActor
from punica_serve.cli.up.on_ray.roles import Place

POLL_INTERVAL_S = 1.0

log = logging.getLogger(__name__)


class TrackedActor:
    """An actor, and its last known place."""

    def __init__(self, placed: PlacedActor) -> None:
        self.placed = placed
        #: Empty until its process has listened for the first time.
        self.url = ""
        self._place: Place | None = None
        self._listens = asyncio.Event()

    async def first_url(self) -> str:
        await self._listens.wait()
        return self.url

    async def keep_following(self) -> None:
        """Follows the actor forever."""
        while True:
            place = await self.placed.where()
            if place.url is not None and place != self._place:
                log.info("the %s is on node %s, at %s", self.placed.role.name, place.node_id, place.url)
                self._place, self.url = place, place.url
                self._listens.set()
            await asyncio.sleep(POLL_INTERVAL_S)
