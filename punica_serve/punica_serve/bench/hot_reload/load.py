"""An open loop: sends requests when they are due, regardless of earlier ones.

Times are measured from when a request was due, so that a slow cluster can't hide it by slowing down its clients. The
number of concurrent requests is limited: if a cluster can't keep up with the clock, requests are sent late, and the
delay is part of the result. So any machine can run the same load, and no request is refused for lack of capacity.
"""

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle

from punica_serve.bench.hot_reload.versions import Verdict, VersionHistory
from punica_serve.demo.asking import Ask
from punica_serve.errors import RequestFailed

#: The prompt of every request.
INTEGER = 42

_NUM_REASONS = 5


@dataclass(frozen=True, slots=True)
class JudgedAnswer:
    """One request and its result, in seconds since the start."""

    lora_id: str
    due_s: float
    sent_s: float
    ended_s: float
    verdict: Verdict


def arrivals(rate_per_s: float, lora_ids: Sequence[str], seed: int) -> Iterator[tuple[float, str]]:
    """Times and adapters, without end: a Poisson process over adapters in turn, reproducible by its seed."""
    rng, due_s = random.Random(seed), 0.0
    for lora_id in cycle(lora_ids):
        due_s += rng.expovariate(rate_per_s)
        yield due_s, lora_id


class RequestLoad:
    """Sends requests until stopped, and judges every answer."""

    def __init__(
        self, ask: Ask, histories: Mapping[str, VersionHistory], now_s: Callable[[], float], *, max_in_flight: int
    ) -> None:
        self._ask = ask
        self._histories = histories
        self._now_s = now_s
        self._places = asyncio.Semaphore(max_in_flight)
        self._is_over = False
        self.answers: list[JudgedAnswer] = []
        #: The first few wrong answers of each kind, described.
        self.wrong: list[str] = []

    async def run(self, requests: Iterator[tuple[float, str]]) -> None:
        """Returns after a stop, when all requests have ended."""
        async with asyncio.TaskGroup() as group:
            for due_s, lora_id in requests:
                await asyncio.sleep(due_s - self._now_s())
                await self._places.acquire()
                if self._is_over:
                    return
                group.create_task(self._ask_once(lora_id, due_s)).add_done_callback(lambda _: self._places.release())

    def stop(self) -> None:
        self._is_over = True

    async def ask_now(self, lora_id: str) -> None:
        """Sends a request in addition to the clock's."""
        await self._ask_once(lora_id, self._now_s())

    async def _ask_once(self, lora_id: str, due_s: float) -> None:
        sent_s = self._now_s()
        try:
            said = await self._ask(lora_id, INTEGER)
            verdict = self._histories[lora_id].judge(said, sent_s, self._now_s())
        except (RequestFailed, TimeoutError) as error:
            said, verdict = str(error) or "no answer in time", Verdict.FAILED
        self.answers.append(JudgedAnswer(lora_id, due_s, sent_s, self._now_s(), verdict))
        if verdict is not Verdict.WHOLE and len(self.wrong) < _NUM_REASONS:
            self.wrong.append(f"{lora_id}, sent at {sent_s:.3f} s: {verdict}: {said!r}")
