"""The last minutes, for those who begin to look now."""

from typing import Any

import pytest

from punica_scheduler.telemetry.history import MAX_SAMPLES
from punica_serve.protocol import ClusterHistory, decode_history
from scheduler_in_words import Cluster, NewAdapter, NewCluster


@pytest.fixture
def cluster(new_cluster: NewCluster) -> Any:
    return new_cluster()


def past(cluster: Cluster) -> ClusterHistory:
    return decode_history(cluster.observer.history())


def test_a_second_a_row(cluster: Cluster) -> None:
    cluster.gpu_joins("gpu", pages=16)
    cluster.time_passes(0)
    cluster.arrives("a", prompt=3)
    cluster.arrives("b", prompt=3)
    cluster.steps("gpu", "a b")
    for _ in range(10):
        cluster.time_passes(0.2)
    history = past(cluster)
    assert len(history.at_ns) == 3
    assert history.arrived == (0, 2, 2) and history.tokens == (0, 2, 2)
    assert history.gpus["gpu"].batch_size_max == (0, 2, 0)
    assert history.gpus["gpu"].batch_size_mean == (0.0, 2.0, 0.0)
    assert history.gpus["gpu"].used_kv_pages == (0, 4, 4)
    assert history.first_token_s[0] is None and history.first_token_s[1] is not None


def test_a_gpu_that_was_not_there_has_gaps(cluster: Cluster) -> None:
    cluster.gpu_joins("gpu-1")
    cluster.time_passes(0)
    cluster.gpu_joins("gpu-2")
    cluster.time_passes(1)
    cluster.gpu_is_lost("gpu-1")
    cluster.time_passes(1)
    gpus = past(cluster).gpus
    assert gpus["gpu-1"].batch_size_max == (0, 0, None) and gpus["gpu-2"].batch_size_max == (None, 0, 0)


def test_one_that_comes_back_keeps_its_column(cluster: Cluster) -> None:
    cluster.gpu_joins("gpu-1", pages=16)
    cluster.time_passes(0)
    cluster.gpu_is_lost("gpu-1")
    cluster.time_passes(1)
    cluster.gpu_joins("gpu-1", pages=16)
    cluster.arrives("a", prompt=3)
    cluster.steps("gpu-1", "a")
    cluster.gpu_joins("gpu-0", pages=16)
    for _ in range(2):
        cluster.time_passes(1)
    gpus = past(cluster).gpus
    assert list(gpus) == ["gpu-0", "gpu-1"]
    assert gpus["gpu-0"].batch_size_max == (None, None, 0, 0) and gpus["gpu-1"].batch_size_max == (0, None, 1, 0)
    assert gpus["gpu-0"].used_kv_pages == (None, None, 0, 0) and gpus["gpu-1"].used_kv_pages == (0, None, 2, 2)


def test_it_is_encoded_once_a_sample_however_many_ask(cluster: Cluster) -> None:
    cluster.time_passes(0)
    encoded = cluster.observer.history()
    cluster.time_passes(0.5)
    assert cluster.observer.history() is encoded
    cluster.time_passes(0.5)
    assert len(past(cluster).at_ns) == 2


def test_it_is_bounded(cluster: Cluster) -> None:
    for _ in range(MAX_SAMPLES + 5):
        cluster.time_passes(1)
    at_ns = past(cluster).at_ns
    assert len(at_ns) == MAX_SAMPLES and at_ns[-1] == cluster.now_ns


def test_when_a_resident_adapter_was_last_used(cluster: Cluster, adapter: NewAdapter) -> None:
    def used_ns() -> tuple[int, ...]:
        used: tuple[int, ...] = cluster.observer.snapshot(cluster.now_ns).gpus[0].adapters_used_ns
        return used

    cluster.gpu_joins("gpu")
    cluster.arrives("a", lora=adapter("roman"))
    cluster.reports("gpu", [], resident=("latin", "roman"))
    assert used_ns() == (0, cluster.now_ns)
    cluster.is_cancelled("a")
    left_ns = cluster.now_ns
    cluster.time_passes(5)
    assert used_ns() == (0, left_ns)
