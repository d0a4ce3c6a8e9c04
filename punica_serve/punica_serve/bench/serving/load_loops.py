"""Sends requests in a closed loop of clients, or at Poisson arrivals whatever the server does."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from typing import Protocol

import numpy as np

from punica_serve.bench.serving.served_times import ServedTimes
from punica_serve.bench.serving.serving_workloads import ServedRequest
from punica_serve.errors import ClusterUnavailable, RequestFailed

_SEED = 7
#: Before each long prompt.
_PAUSE_S = 1.0

#: Called with the number of tokens that came.
OnTokens = Callable[[int], object]


class Client(Protocol):
    """Sends requests to one server; any number at once."""

    def stream(self, request: ServedRequest) -> AsyncGenerator[int, None]:
        """Yields the number of tokens so far, whenever there are more. Raises RequestFailed and ClusterUnavailable."""
        ...

    async def aclose(self) -> None:
        """Closes its connections."""
        ...


class LoadRun:
    """The times of all requests of one run."""

    def __init__(self, client: Client, timeout_s: float, on_tokens: OnTokens) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self._on_tokens = on_tokens
        self._started_s = asyncio.get_running_loop().time()
        self.times: list[ServedTimes] = []
        #: Times of the long prompts beside them.
        self.long_times: list[ServedTimes] = []

    def now_s(self) -> float:
        return asyncio.get_running_loop().time() - self._started_s

    async def send(self, request: ServedRequest, due_s: float, *, is_long: bool = False) -> None:
        """Sends a request and waits for its end. A failure is kept in its times."""
        times = ServedTimes(due_s)
        (self.long_times if is_long else self.times).append(times)
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._take(request, times)
        except TimeoutError:
            times.error = f"no end within {self._timeout_s:g} s"
        except (RequestFailed, ClusterUnavailable) as error:
            times.error = error.message
        times.ended_s = self.now_s()

    async def _take(self, request: ServedRequest, times: ServedTimes) -> None:
        num_tokens = 0
        async with aclosing(self._client.stream(request)) as stream:
            async for num_so_far in stream:
                times.arrivals.append((self.now_s(), num_so_far))
                self._on_tokens(num_so_far - num_tokens)
                num_tokens = num_so_far


async def closed_loop(run: LoadRun, requests: Sequence[ServedRequest], num_clients: int) -> None:
    """Each of the clients sends its next request as soon as its last one has ended."""
    waiting = iter(requests)

    async def client() -> None:
        for request in waiting:
            await run.send(request, run.now_s())

    async with asyncio.TaskGroup() as group:
        for _ in range(min(num_clients, len(requests))):
            group.create_task(client())


async def poisson(run: LoadRun, requests: Sequence[ServedRequest], rate_per_s: float, burst: int = 1) -> None:
    """Sends each request at its time. ``burst``: so many adjacent ones arrive together."""
    async with asyncio.TaskGroup() as group:
        for first, due_s in zip(range(0, len(requests), burst), due_times(rate_per_s / burst), strict=False):
            await asyncio.sleep(due_s - run.now_s())
            for request in requests[first : first + burst]:
                group.create_task(run.send(request, due_s))


async def long_prompts(run: LoadRun, requests: Iterable[ServedRequest]) -> None:
    """Sends one long prompt after the other beside a load, with pauses that show what the load does without them."""
    for request in requests:
        await asyncio.sleep(_PAUSE_S)
        await run.send(request, run.now_s(), is_long=True)


def due_times(rate_per_s: float) -> Iterator[float]:
    """Times of a Poisson process, without end; the same for the same rate."""
    rng, due_s = np.random.default_rng(_SEED), 0.0
    while True:
        due_s += float(rng.exponential(1 / rate_per_s))
        yield due_s
