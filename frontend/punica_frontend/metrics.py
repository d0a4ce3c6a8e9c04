"""Prometheus' text of what a frontend has seen and of the cluster as its scheduler sees it. Does no input or output.

Label values are bounded: outcomes are finish reasons and error codes, GPUs and runners are those of the cluster. Every
frontend tells the same of the cluster, so take the maximum over frontends of those, and the sum of a frontend's own.
"""

from collections.abc import Iterable, Iterator
from itertools import accumulate

from prometheus_client import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from punica_frontend.figures import Distribution, Figures
from punica_serve.protocol import ClusterSnapshot

PREFIX = "punica_"

#: A counter of the scheduler -> its metric, without the prefix and "_total", and what it counts.
_SCHEDULER_COUNTERS = {
    "arrived": ("cluster_requests_arrived", "Requests that reached the scheduler."),
    "finished": ("cluster_requests_finished", "Requests that ended by themselves."),
    "cancelled": ("cluster_requests_cancelled", "Requests that their clients or frontends gave up."),
    "failed": ("cluster_requests_failed", "Requests that the scheduler ended with an error."),
    "tokens": ("cluster_tokens", "Tokens delivered to frontends."),
    "evictions": ("evictions", "Requests taken off a GPU that ran out of KvCache pages."),
    "migrations": ("migrations", "Requests moved to another GPU."),
    "consolidations": ("consolidations", "Lightly loaded GPUs that were emptied."),
    "gpus_lost": ("gpus_lost", "GPUs lost with their workers or runners."),
}


def exposition(families: Iterable[Metric]) -> bytes:
    """The text format of Prometheus, version 0.0.4."""
    return generate_latest(_Collected(families))


def frontend_families(figures: Figures, *, is_connected: bool, is_draining: bool) -> Iterator[Metric]:
    """What this frontend knows by itself."""
    ended = CounterMetricFamily(f"{PREFIX}requests", "Requests that ended, by how.", labels=["outcome"])
    for outcome, count in sorted(figures.num_ended.items()):
        ended.add_metric([outcome], count)
    yield ended
    yield _gauge("live_requests", "Requests of this frontend that run or wait.", figures.num_live)
    yield _gauge("websockets", "Open websockets for streams of answers.", figures.num_websockets)
    yield _gauge("scheduler_connected", "1 while the link to the scheduler is up.", is_connected)
    yield _gauge("draining", "1 while this frontend finishes what it has and takes nothing new.", is_draining)
    yield _counter("prompt_tokens", "Tokens of the prompts of requests.", figures.num_prompt_tokens)
    yield _counter("generated_tokens", "Tokens generated for requests.", figures.num_generated_tokens)
    yield _histogram("time_to_first_token", "From a request's arrival to its first token.", figures.first_token_s)
    yield _histogram("inter_token_latency", "Between two tokens of a request.", figures.inter_token_s)


def cluster_families(cluster: ClusterSnapshot) -> Iterator[Metric]:
    """What the scheduler knows."""
    yield _gauge("queue_length", "Requests that wait for a GPU.", cluster.queue_length)
    yield _gauge("gpus", "GPUs that have joined.", len(cluster.gpus))
    yield _gauge("runners", "Runners connected to the scheduler.", cluster.num_runners)
    yield _gauge("frontends", "Frontends connected to the scheduler.", cluster.num_frontends)
    releasable = cluster.advice.releasable_runners
    yield _gauge("advised_more_gpus", "GPUs that the fleet should grow by.", cluster.advice.num_more_gpus)
    yield _gauge("advised_releasable_runners", "Runners that could be released: all idle.", len(releasable))
    named = GaugeMetricFamily(f"{PREFIX}runner_releasable", "1 for a runner that could be released.", labels=["runner"])
    for runner_id in releasable:
        named.add_metric([runner_id], 1)
    yield named
    for counter, (name, text) in _SCHEDULER_COUNTERS.items():
        yield _counter(name, text, cluster.counters.get(counter, 0))
    yield from _gpu_families(cluster)


def _gpu_families(cluster: ClusterSnapshot) -> Iterator[Metric]:
    labels = ["gpu", "runner"]

    def gauge(name: str, text: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"{PREFIX}gpu_{name}", text, labels=labels)

    families: tuple[GaugeMetricFamily | CounterMetricFamily, ...] = (
        gauge("working_set", "Requests placed on the GPU and not stopped."),
        gauge("batch_size", "Requests in the newest step."),
        gauge("max_batch_size", "Requests that a step can hold."),
        gauge("free_kv_pages", "Free pages of the KvCache."),
        gauge("kv_pages", "Pages of the KvCache."),
        gauge("adapters", "Different adapters in the newest step."),
        gauge("resident_adapters", "Adapters in the GPU's memory."),
        gauge("draining", "1 while nothing new is placed on the GPU and what runs there moves."),
        CounterMetricFamily(f"{PREFIX}gpu_steps", "Model invocations.", labels=labels),
        CounterMetricFamily(f"{PREFIX}gpu_tokens", "Tokens generated.", labels=labels),
    )
    for gpu in cluster.gpus:
        values = (
            gpu.working_set,
            gpu.batch_size,
            gpu.gpu.max_batch_size,
            gpu.free_kv_pages,
            gpu.gpu.num_kv_pages,
            gpu.num_adapters,
            len(gpu.resident_adapters),
            gpu.is_draining,
            gpu.steps,
            gpu.tokens,
        )
        for family, value in zip(families, values, strict=True):
            family.add_metric([gpu.gpu.uuid, gpu.runner_id], value)
    yield from families


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(PREFIX + name, text, value=value)


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(PREFIX + name, text, value=value)


def _histogram(name: str, text: str, times_s: Distribution) -> HistogramMetricFamily:
    """Prometheus' buckets are cumulative."""
    buckets = list(zip([*map(str, times_s.bounds), "+Inf"], accumulate(times_s.counts), strict=True))
    return HistogramMetricFamily(f"{PREFIX}{name}_seconds", text, buckets=buckets, sum_value=times_s.sum)


class _Collected:
    """What ``generate_latest`` wants of a registry."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families
