"""Rates and percentiles of the newest half minute."""

from typing import Any

import pytest

from punica_scheduler.telemetry.rolling_stats import RollingTimes
from punica_serve.protocol import PromiseCounts
from scheduler_in_words import Cluster, NewCluster

MS = 1_000_000


@pytest.fixture
def cluster(new_cluster: NewCluster) -> Any:
    cluster = new_cluster()
    cluster.gpu_joins("gpu", pages=100, batch=32)
    return cluster


def recent(cluster: Cluster) -> Any:
    return cluster.observer.snapshot(cluster.now_ns).recent


@pytest.mark.parametrize("time_ms", [1, 20, 333, 60_000])
def test_a_percentile_is_right_to_a_tenth(time_ms: int) -> None:
    times = RollingTimes()
    times.observe(time_ms * MS, times=98)
    times.observe(100_000 * MS, times=2)
    percentiles = times.percentiles()
    assert percentiles is not None
    assert percentiles.p50 == percentiles.p90 == pytest.approx(time_ms / 1e3, rel=0.1)
    assert percentiles.p99 == pytest.approx(100, rel=0.1)


def test_times_that_are_no_longer_recent_are_forgotten() -> None:
    times = RollingTimes()
    times.observe(MS)
    for _ in range(5):
        times.begin_slice()
    assert times.percentiles() is not None
    times.begin_slice()
    assert times.percentiles() is None


def test_promises_count_from_the_start_and_in_the_window(cluster: Cluster) -> None:
    cluster.time_passes(0)
    cluster.observer.count_promises(PromiseCounts(5, 1, 0, 2))
    cluster.time_passes(1)
    assert recent(cluster).promises == PromiseCounts(5, 1, 0, 2)
    for _ in range(7):
        cluster.time_passes(5)
    cluster.observer.count_promises(PromiseCounts(1))
    assert recent(cluster).promises == PromiseCounts(1)
    counters = cluster.observer.snapshot(cluster.now_ns).counters
    assert (counters["first_token_kept"], counters["first_token_broken"]) == (6, 1)
    assert (counters["time_per_token_kept"], counters["time_per_token_broken"]) == (0, 2)


def test_first_tokens_count_from_admission(cluster: Cluster) -> None:
    cluster.time_passes(0)
    cluster.arrives("a")
    cluster.time_passes(0.5)
    assert recent(cluster).first_token_s is None
    cluster.steps("gpu", "a")
    assert recent(cluster).first_token_s.p99 == pytest.approx(0.5, rel=0.1)
    assert recent(cluster).inter_token_s is None, "a first token comes after none"


def test_next_tokens_count_from_their_gpus_last_report(cluster: Cluster) -> None:
    cluster.time_passes(0)
    cluster.arrives("a")
    cluster.steps("gpu", "a")
    for _ in range(3):
        cluster.time_passes(0.02)
        cluster.steps("gpu", "a")
    cluster.arrives("b")
    cluster.time_passes(0.1)
    cluster.steps("gpu", "a b")
    times = recent(cluster).inter_token_s
    assert times.p50 == pytest.approx(0.02, rel=0.1) and times.p99 == pytest.approx(0.1, rel=0.1)


def test_a_gpu_that_was_idle_made_nobody_wait(cluster: Cluster) -> None:
    cluster.time_passes(0)
    cluster.arrives("a")
    cluster.steps("gpu", "a", finished="a")
    cluster.time_passes(10)
    cluster.arrives("b")
    cluster.steps("gpu", "b")
    assert recent(cluster).inter_token_s is None


def test_rates_are_of_the_window(cluster: Cluster) -> None:
    cluster.time_passes(0)
    for second in range(60):
        cluster.arrives(f"r{second}", max_tokens=1)
        cluster.steps("gpu", f"r{second}", finished=f"r{second}")
        cluster.time_passes(1)
    figures = recent(cluster)
    assert 25 <= figures.window_s <= 30.1
    assert figures.requests_per_s == pytest.approx(1, rel=0.05) and figures.tokens_per_s == pytest.approx(1, rel=0.05)
