"""A simulated scheduler at the end of a frontend's link: every request gets a token at each step of its GPU."""

import asyncio
from typing import Any, Never

from punica_serve.links.channel import Channel
from punica_serve.links.hello import accept
from punica_serve.protocol import AddRequest, Deliveries, Ending, Limits

#: Tokens of the demo's vocabulary that have a text.
_FIRST_TOKEN_ID, _NUM_TOKEN_IDS = 20, 50


class PlayedGpu:
    """Requests that get their tokens together. Does no input or output."""

    def __init__(self) -> None:
        #: handle -> position of the request's next token.
        self._positions: dict[int, int] = {}
        #: handle -> tokens of its answer.
        self._lengths: dict[int, int] = {}

    def __len__(self) -> int:
        """Requests that run."""
        return len(self._positions)

    def add(self, handle: int, num_tokens: int) -> None:
        self._positions[handle], self._lengths[handle] = 0, num_tokens

    def step(self) -> Deliveries:
        """The next token of each request, and the ends of those that have all theirs."""
        handles, positions = tuple(self._positions), tuple(self._positions.values())
        token_ids = tuple(_FIRST_TOKEN_ID + position % _NUM_TOKEN_IDS for position in positions)
        endings = []
        for handle, position in zip(handles, positions, strict=True):
            self._positions[handle] = position + 1
            if position + 1 == self._lengths[handle]:
                endings.append(Ending(handle, position + 1, "length"))
                del self._positions[handle], self._lengths[handle]
        return Deliveries(handles, positions, token_ids, endings=tuple(endings))


class PlayedScheduler:
    """Assigns requests to its GPUs in turn."""

    def __init__(self, token: str, num_gpus: int) -> None:
        self._token = token
        self._gpus = [PlayedGpu() for _ in range(num_gpus)]
        self._channel: Channel | None = None
        self.num_tokens = 0

    @property
    def num_requests(self) -> int:
        return sum(map(len, self._gpus))

    async def session(self, channel: Channel) -> None:
        await accept(channel, token=self._token, incarnation=1)
        channel.send(Limits(len(self._gpus), None))
        self._channel = channel
        await channel.serve(self._take)

    def _take(self, message: Any) -> None:
        if isinstance(message, AddRequest):
            gpu = self._gpus[message.handle % len(self._gpus)]
            gpu.add(message.handle, message.request.sampling.max_tokens)

    async def keep_stepping(self, step_s: float) -> Never:
        """Runs one step of every GPU in ``step_s``, evenly spread, until cancelled. A late step is not skipped."""
        loop = asyncio.get_running_loop()
        next_s = loop.time()
        while True:
            for gpu in self._gpus:
                if self._channel is not None and gpu:
                    self.num_tokens += len(gpu)
                    self._channel.send(gpu.step(), may_wait=True)
                next_s += step_s / len(self._gpus)
                await asyncio.sleep(max(0.0, next_s - loop.time()))
