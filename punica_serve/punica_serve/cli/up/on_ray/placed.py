"""Tracks the addresses of listening actors as Ray moves them."""

import asyncio
import logging

from punica_serve.cli.up.on_ray.roles import Place
from punica_serve.cli.up.on_ray.seats import Seat

POLL_INTERVAL_S = 1.0

log = logging.getLogger(__name__)


class Placed:
    """A seat, and its last known place."""

    def __init__(self, seat: Seat) -> None:
        self.seat = seat
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
            place = await self.seat.where()
            if place.url is not None and place != self._place:
                log.info("the %s is on node %s, at %s", self.seat.role.name, place.node_id, place.url)
                self._place, self.url = place, place.url
                self._listens.set()
            await asyncio.sleep(POLL_INTERVAL_S)
