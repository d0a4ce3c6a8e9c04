"""A simulated scheduler at the end of a frontend's link: every request gets a token at each step of its GPU."""

import asyncio
from typing import Any, Never

from punica_serve.links.channel import Channel
from punica_serve.links.hello import accept
from punica_serve.protocol import AddRequest, Deliveries, Limits

#: Tokens of the demo's vocabulary that have a text.
_FIRST_TOKEN_ID, _NUM_TOKEN_IDS = 20, 50


class PlayedScheduler:
    """Assigns requests to its GPUs in turn, and never ends one."""

    def __init__(self, token: str, num_gpus: int) -> None:
        self._token = token
        #: For each GPU: handle -> position of the request's next token.
        self._positions: list[dict[int, int]] = [{} for _ in range(num_gpus)]
        self._channel: Channel | None = None
        self.num_tokens = 0

    @property
    def num_requests(self) -> int:
        return sum(map(len, self._positions))

    async def session(self, channel: Channel) -> None:
        await accept(channel, token=self._token, incarnation=1)
        channel.send(Limits(len(self._positions), None))
        self._channel = channel
        await channel.serve(self._take)

    def _take(self, message: Any) -> None:
        if isinstance(message, AddRequest):
            self._positions[message.handle % len(self._positions)][message.handle] = 0

    async def keep_stepping(self, step_s: float) -> Never:
        """Runs one step of every GPU in ``step_s``, evenly spread, until cancelled. A late step is not skipped."""
        loop = asyncio.get_running_loop()
        next_s = loop.time()
        while True:
            for positions in self._positions:
                self._step(positions)
                next_s += step_s / len(self._positions)
                await asyncio.sleep(max(0.0, next_s - loop.time()))

    def _step(self, positions: dict[int, int]) -> None:
        if self._channel is None or not positions:
            return
        token_ids = tuple(_FIRST_TOKEN_ID + position % _NUM_TOKEN_IDS for position in positions.values())
        self._channel.send(Deliveries(tuple(positions), tuple(positions.values()), token_ids), may_wait=True)
        self.num_tokens += len(positions)
        for handle in positions:
            positions[handle] += 1
