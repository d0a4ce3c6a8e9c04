import asyncio
from collections.abc import AsyncGenerator
from itertools import islice, pairwise, repeat

import pytest

from punica_serve.bench.serving import load_loops
from punica_serve.bench.serving.load_loops import LoadRun, closed_loop, due_times, long_prompts, poisson
from punica_serve.bench.serving.serving_workloads import ServedRequest
from punica_serve.errors import RequestFailed

REQUESTS = [ServedRequest((1,), 2, number) for number in range(9)]


class CountingClient:
    """Answers at once, and counts how many requests run together. Fails for the adapters that it is given."""

    def __init__(self, *failing: int) -> None:
        self.num_running = self.most_running = 0
        self.adapters: list[int | None] = []
        self._failing = failing

    async def stream(self, request: ServedRequest) -> AsyncGenerator[int, None]:
        self.adapters.append(request.adapter)
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        try:
            for num_tokens in range(1, request.max_tokens + 1):
                await asyncio.sleep(0)
                if request.adapter in self._failing:
                    raise RequestFailed("broken")
                yield num_tokens
        finally:
            self.num_running -= 1

    async def aclose(self) -> None:
        pass


async def test_a_closed_loop_keeps_its_clients_busy_and_no_more() -> None:
    client, tokens = CountingClient(), list[int]()
    run = LoadRun(client, 60.0, tokens.append)
    await closed_loop(run, REQUESTS, 4)
    assert client.most_running == 4 and client.adapters == [*range(9)]
    assert sum(tokens) == 18 and all(times.num_tokens == 2 and times.error is None for times in run.times)


async def test_a_failure_is_kept_and_the_others_go_on() -> None:
    run = LoadRun(CountingClient(3, 5), 60.0, lambda _: None)
    await closed_loop(run, REQUESTS, 2)
    assert [times.error for times in run.times].count("broken") == 2 and len(run.times) == 9


async def test_long_prompts_are_sent_one_after_the_other_and_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_loops, "_PAUSE_S", 0.0)
    client = CountingClient()
    run = LoadRun(client, 60.0, lambda _: None)
    await long_prompts(run, repeat(ServedRequest((1,), 1, None), 3))
    assert client.most_running == 1 and not run.times
    assert [times.num_tokens for times in run.long_times] == [1, 1, 1]


async def test_poisson_arrivals_of_a_group_come_together() -> None:
    client = CountingClient()
    run = LoadRun(client, 60.0, lambda _: None)
    await poisson(run, REQUESTS, 1e6, burst=3)
    assert [times.due_s for times in run.times] == sorted(times.due_s for times in run.times)
    assert len({times.due_s for times in run.times}) == 3 and client.most_running >= 3


def test_poisson_arrivals_have_their_rate_and_repeat() -> None:
    times = [*islice(due_times(20.0), 2000)]
    assert times == [*islice(due_times(20.0), 2000)]
    assert times[-1] == pytest.approx(100.0, rel=0.1)
    assert min(later - earlier for earlier, later in pairwise(times)) > 0
