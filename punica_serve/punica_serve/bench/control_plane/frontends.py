"""Plays the frontends: one link each, which adds requests and records the age of every token on arrival."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from punica_serve.bench.control_plane.settings import NUM_ADAPTERS, PROMPT_TOKENS, LoadSettings, age
from punica_serve.errors import ClusterUnavailable, RequestFailed
from punica_serve.links.channel import Channel
from punica_serve.links.hello import dial
from punica_serve.protocol import (
    PROTOCOL_VERSION,
    AdapterRef,
    AddRequest,
    Deliveries,
    Ending,
    FrontendHello,
    Request,
    SamplingParams,
    SchedulerToFrontend,
)

_MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(slots=True)
class ArrivedTokens:
    """The tokens that arrived since the last look."""

    num_tokens: int = 0
    num_ended: int = 0
    #: Age on arrival -> number of token groups, each made and received together.
    ages: Counter[int] = field(default_factory=Counter)


class Frontend:
    """One frontend's requests; each that ends is replaced by a new one."""

    def __init__(self, load: LoadSettings, index: int, arrivals: ArrivedTokens) -> None:
        self.name = f"frontend-{index}"
        self._load = load
        self._random = random.Random(index)
        self._arrivals = arrivals
        self._num_added = 0
        #: Requests of the start that have had no token yet. Later ones don't count: some are always waiting.
        self.new: set[int] = set()

    def add(self, channel: Channel) -> None:
        handle = self._num_added
        self._num_added += 1
        if self._is_of_the_start(handle):
            self.new.add(handle)
        channel.send(AddRequest(handle, self._request(handle)))

    def take(self, deliveries: Deliveries, channel: Channel) -> None:
        now_s = time.monotonic()
        self._arrivals.num_tokens += len(deliveries.handles)
        self._arrivals.ages.update(age(made, now_s) for made in set(deliveries.token_ids))
        if self.new:
            self.new.difference_update(deliveries.handles)
        for ending in deliveries.endings:
            self._replace(ending, channel)

    def _replace(self, ending: Ending, channel: Channel) -> None:
        if ending.reason != "length":
            raise RequestFailed(f"a request of the benchmark ended with {ending.reason}: {ending.error}")
        self._arrivals.num_ended += 1
        self.add(channel)

    def _is_of_the_start(self, handle: int) -> bool:
        return handle < self._load.settings.num_requests // self._load.settings.num_frontends

    def _request(self, handle: int) -> Request:
        settings, draw = self._load.settings, self._random
        max_tokens = self._answer_tokens(handle) if self._load.has_churn else settings.endless_tokens
        number = draw.randrange(NUM_ADAPTERS)
        adapter = AdapterRef(f"{number:064x}", f"/adapters/{number}", 1 << 24, dict.fromkeys(_MODULES, 16))
        prompt = tuple(draw.choices(range(32_000), k=PROMPT_TOKENS))
        return Request(
            f"{self.name}-{handle}", time.time_ns(), prompt, SamplingParams(seed=1, max_tokens=max_tokens), adapter
        )

    def _answer_tokens(self, handle: int) -> int:
        """Length of an answer. For requests of the start, the rest of an answer in progress, as if the load had long
        been running.

        Otherwise requests would end together, and their rate would oscillate for a minute. At any time long answers are
        more likely to be in progress than short ones, each at a uniformly random point.
        """
        lengths = range(self._load.settings.answer_tokens[0], self._load.settings.answer_tokens[1] + 1)
        if not self._is_of_the_start(handle):
            return self._random.choice(lengths)
        (length,) = self._random.choices(lengths, weights=lengths)
        return self._random.randint(1, length)


async def main(load: LoadSettings, on_ready: Callable[[Callable[[], Any]], None]) -> None:
    """Runs all frontends; ready when every request has had a token. Each look returns the Arrivals since the last."""
    arrivals = ArrivedTokens()

    def look() -> ArrivedTokens:
        seen = replace(arrivals)
        arrivals.num_tokens, arrivals.num_ended, arrivals.ages = 0, 0, Counter()
        return seen

    num_frontends = load.settings.num_frontends
    filled = asyncio.Barrier(num_frontends + 1)
    async with asyncio.TaskGroup() as tasks:
        for index in range(num_frontends):
            share = len(range(index, load.settings.num_requests, num_frontends))
            tasks.create_task(_run_frontend(load, Frontend(load, index, arrivals), share, filled))
        await filled.wait()
        on_ready(look)


async def _run_frontend(load: LoadSettings, frontend: Frontend, num_requests: int, filled: asyncio.Barrier) -> None:
    hello = FrontendHello(PROTOCOL_VERSION, load.token, frontend.name)
    async with dial(load.scheduler_url, hello, SchedulerToFrontend) as (channel, _), asyncio.TaskGroup() as tasks:
        is_filled = False

        def take(message: Any) -> None:
            nonlocal is_filled
            if isinstance(message, Deliveries):
                frontend.take(message, channel)
            if not is_filled and not frontend.new:
                is_filled = True
                tasks.create_task(_pass(filled))

        for _ in range(num_requests):
            frontend.add(channel)
        await channel.serve(take)
        raise ClusterUnavailable(f"{frontend.name} lost its link to the scheduler: {channel.end_reason}")


async def _pass(barrier: asyncio.Barrier) -> None:
    await barrier.wait()
