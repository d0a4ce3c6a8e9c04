import asyncio
import contextlib

import httpx
import pytest

from punica_serve.simulation.live import watch
from punica_serve.simulation.live.watch import Sample, keep_sampling, timeline_of
from waits import DEADLINE_S


def sample(time_s: float, tokens: int, queue_length: int = 0, **batch_sizes: int) -> Sample:
    return Sample(time_s, batch_sizes, queue_length, {"tokens": tokens, "arrived": tokens // 10})


def test_batch_sizes_are_means_and_rates_slopes() -> None:
    samples = [
        sample(0, 1000, a=0, b=4),
        sample(1, 1020, a=2, b=6),
        sample(2, 1040, 3, a=4, b=0),
        sample(4, 1100, a=0, b=0),
    ]
    timeline = timeline_of(samples, interval_s=2.0, max_batch_size=8)
    assert timeline.tokens_per_s == [20.0, 30.0]
    assert timeline.requests_per_s == [2.0, 3.0]
    assert timeline.batch_sizes == {"a": [1.0, 4.0], "b": [5.0, 0.0]}
    assert timeline.queue_length == [0, 3]
    assert timeline.max_batch_size == 8 and timeline.times_s == [0.0, 2.0]


def test_a_gpu_that_is_gone_for_a_while_was_idle() -> None:
    samples = [sample(0, 0, a=4, b=4), sample(1, 0, a=4), sample(2, 0, a=4, b=4)]
    assert timeline_of(samples, interval_s=2.0, max_batch_size=8).batch_sizes == {"a": [4.0], "b": [2.0]}


def test_rows_are_in_the_order_of_the_gpus_names() -> None:
    samples = [sample(second, 0, **{"host/10": 1, "host/2": 2}) for second in range(3)]
    assert list(timeline_of(samples, interval_s=2.0, max_batch_size=8).batch_sizes) == ["host/2", "host/10"]


def test_an_interval_without_samples_is_empty() -> None:
    timeline = timeline_of([sample(0, 0, a=4), sample(6, 60, a=4)], interval_s=2.0, max_batch_size=8)
    assert timeline.batch_sizes == {"a": [4.0, 0.0, 0.0]}
    assert timeline.tokens_per_s == [10.0, 10.0, 10.0]


def client(*answers: httpx.Response) -> httpx.AsyncClient:
    remaining = list(answers)
    transport = httpx.MockTransport(lambda _: remaining.pop(0) if len(remaining) > 1 else remaining[0])
    return httpx.AsyncClient(base_url="http://host:8000", transport=transport)


CLUSTER = {
    "incarnation": 1,
    "gpus": [{"gpu": {"uuid": "GPU-1", "name": "host/0"}, "batch_size_mean": 5.0}],
    "queue_length": 2,
    "counters": {"tokens": 7},
}


async def sampled(asked: httpx.AsyncClient, num_samples: int) -> list[Sample]:
    """The first samples of a cluster that gives these answers."""
    samples: list[Sample] = []
    sampling = asyncio.create_task(keep_sampling(asked, lambda: 1.5, samples))
    async with asyncio.timeout(DEADLINE_S):
        while len(samples) < num_samples:  # noqa: ASYNC110
            await asyncio.sleep(0)
    sampling.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await sampling
    return samples[:num_samples]


async def test_a_failed_sample_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "SAMPLE_INTERVAL_S", 0.0)
    async with client(httpx.Response(503), httpx.Response(200, json=CLUSTER)) as asked:
        assert await sampled(asked, 1) == [Sample(1.5, {"host/0": 5}, 2, {"tokens": 7})]


async def test_a_scheduler_that_starts_again_counts_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "SAMPLE_INTERVAL_S", 0.0)
    lives = ((1, 7), (1, 9), (2, 0), (2, 4), (3, 1))
    answers = [
        httpx.Response(200, json=CLUSTER | {"incarnation": life, "counters": {"tokens": n}}) for life, n in lives
    ]
    async with client(*answers) as asked:
        assert [sample.counters["tokens"] for sample in await sampled(asked, 5)] == [7, 9, 9, 13, 14]
