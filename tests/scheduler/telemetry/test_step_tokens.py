"""How many tokens each step computes."""

from punica_scheduler.telemetry.observer import ClusterObserver
from punica_scheduler.telemetry.step_tokens import BOUNDS, StepTokens
from punica_serve.protocol import StepReport
from scheduler_in_words import NewCluster


def report(batch_size: int, num_prefill_tokens: int = 0, step: int = 1) -> StepReport:
    return StepReport(
        gpu_uuid="A",
        epoch=0,
        step=step,
        applied_seq=0,
        free_kv_pages=0,
        batch_size=batch_size,
        num_prefill_tokens=num_prefill_tokens,
        num_adapters=1,
        duration_s=0.01,
    )


def test_a_prefill_counts_its_tokens_and_each_decode_one() -> None:
    tokens = StepTokens()
    for batch_size, num_prefill_tokens in ((8, 0), (1, 500), (3, 510)):
        tokens.observe(report(batch_size, num_prefill_tokens))
    histogram = tokens.snapshot()
    assert histogram.sum == 8 + 500 + 512
    assert dict(zip(BOUNDS, histogram.counts, strict=False)) == dict.fromkeys(BOUNDS, 0) | {8: 1, 512: 2}


def test_a_step_beyond_all_bounds_is_in_the_last_bucket() -> None:
    tokens = StepTokens()
    tokens.observe(report(1, BOUNDS[-1] + 1))
    assert tokens.snapshot().counts[len(BOUNDS)] == 1


def test_the_snapshot_has_each_step_of_the_cluster_once(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    for name in ("A", "B"):
        cluster.gpu_joins(name)
    cluster.arrives("r1")
    cluster.steps("B", "r1")
    cluster.steps("B", "r1")
    assert isinstance(cluster.observer, ClusterObserver)
    assert sum(cluster.observer.snapshot(cluster.now_ns).step_tokens.counts) == 2
