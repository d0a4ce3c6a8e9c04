import asyncio
import contextlib

import httpx
import pytest

from punica_serve.replay import watch
from punica_serve.replay.watch import Look, keep_looking, timeline_of
from waits import DEADLINE_S


def look(time_s: float, tokens: int, queue_length: int = 0, **batch_sizes: int) -> Look:
    return Look(time_s, batch_sizes, queue_length, {"tokens": tokens, "arrived": tokens // 10})


def test_batch_sizes_are_means_and_rates_slopes() -> None:
    looks = [look(0, 1000, a=0, b=4), look(1, 1020, a=2, b=6), look(2, 1040, 3, a=4, b=0), look(4, 1100, a=0, b=0)]
    timeline = timeline_of(looks, interval_s=2.0, max_batch_size=8)
    assert timeline.tokens_per_s == [20.0, 30.0]
    assert timeline.requests_per_s == [2.0, 3.0]
    assert timeline.batch_sizes == {"a": [1.0, 4.0], "b": [5.0, 0.0]}
    assert timeline.queue_length == [0, 3]
    assert timeline.max_batch_size == 8 and timeline.times_s == [0.0, 2.0]


def test_a_gpu_that_is_gone_for_a_while_was_idle() -> None:
    looks = [look(0, 0, a=4, b=4), look(1, 0, a=4), look(2, 0, a=4, b=4)]
    assert timeline_of(looks, interval_s=2.0, max_batch_size=8).batch_sizes == {"a": [4.0], "b": [2.0]}


def test_an_interval_that_nobody_looked_at_is_empty() -> None:
    timeline = timeline_of([look(0, 0, a=4), look(6, 60, a=4)], interval_s=2.0, max_batch_size=8)
    assert timeline.batch_sizes == {"a": [4.0, 0.0, 0.0]}
    assert timeline.tokens_per_s == [10.0, 10.0, 10.0]


def client(*answers: httpx.Response) -> httpx.AsyncClient:
    remaining = list(answers)
    transport = httpx.MockTransport(lambda _: remaining.pop(0) if len(remaining) > 1 else remaining[0])
    return httpx.AsyncClient(base_url="http://host:8000", transport=transport)


CLUSTER = {
    "incarnation": 1,
    "gpus": [{"gpu": {"uuid": "a"}, "batch_size": 5}],
    "queue_length": 2,
    "counters": {"tokens": 7},
}


async def looked_at(asked: httpx.AsyncClient, num_looks: int) -> list[Look]:
    """The first looks at a cluster that gives these answers."""
    looks: list[Look] = []
    looking = asyncio.create_task(keep_looking(asked, lambda: 1.5, looks))
    async with asyncio.timeout(DEADLINE_S):
        while len(looks) < num_looks:  # noqa: ASYNC110
            await asyncio.sleep(0)
    looking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await looking
    return looks[:num_looks]


async def test_a_look_that_fails_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "LOOK_INTERVAL_S", 0.0)
    async with client(httpx.Response(503), httpx.Response(200, json=CLUSTER)) as asked:
        assert await looked_at(asked, 1) == [Look(1.5, {"a": 5}, 2, {"tokens": 7})]


async def test_a_scheduler_that_starts_again_counts_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "LOOK_INTERVAL_S", 0.0)
    lives = ((1, 7), (1, 9), (2, 0), (2, 4), (3, 1))
    answers = [
        httpx.Response(200, json=CLUSTER | {"incarnation": life, "counters": {"tokens": n}}) for life, n in lives
    ]
    async with client(*answers) as asked:
        assert [look.counters["tokens"] for look in await looked_at(asked, 5)] == [7, 9, 9, 13, 14]
