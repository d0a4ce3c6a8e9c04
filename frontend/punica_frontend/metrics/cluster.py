"""The scheduler's metrics. Every frontend reports the same."""

from collections.abc import Iterator

from punica_frontend.metrics import catalogue
from punica_frontend.metrics.distribution import Distribution
from punica_frontend.metrics.text import NO_LABELS, family, labelled
from punica_serve.protocol import ClusterSnapshot, GpuSnapshot, TokenHistogram


def cluster_lines(cluster: ClusterSnapshot, model: str, *, cache_dtype: str) -> Iterator[str]:
    """``model`` is the API's name for the base model; ``cache_dtype`` is the data type of the KvCache."""
    advice = cluster.advice
    for metric, value in (
        (catalogue.QUEUE_LENGTH, cluster.queue_length),
        (catalogue.GPUS, len(cluster.gpus)),
        (catalogue.RUNNERS, cluster.num_runners),
        (catalogue.FRONTENDS, cluster.num_frontends),
        (catalogue.MORE_GPUS, advice.num_more_gpus),
        (catalogue.RELEASABLE, len(advice.releasable_runners)),
    ):
        yield from family(metric, [(NO_LABELS, value)])
    named = [(labelled(runner=runner_id), 1) for runner_id in advice.releasable_runners]
    yield from family(catalogue.RUNNER_RELEASABLE, named)
    for counter, metric in catalogue.COUNTERS.items():
        yield from family(metric, [(NO_LABELS, cluster.counters.get(counter, 0))])
    yield from family(catalogue.ITERATION_TOKENS, [(labelled(model_name=model), _distribution(cluster.step_tokens))])
    yield from _cache_configs(cluster.gpus, cache_dtype)
    yield from _engines(cluster.gpus, model)
    yield from _gpus(cluster.gpus)


def _distribution(tokens: TokenHistogram) -> Distribution:
    distribution = Distribution(tokens.bounds)
    distribution.counts, distribution.sum = list(tokens.counts), tokens.sum
    return distribution


def _cache_configs(gpus: tuple[GpuSnapshot, ...], cache_dtype: str) -> Iterator[str]:
    """Yields vLLM's names for the KvCaches' shapes. Like vLLM's they have no label for the model."""
    labels = [
        labelled(
            engine=gpu.gpu.uuid,
            block_size=str(gpu.gpu.page_size),
            num_gpu_blocks=str(gpu.gpu.num_kv_pages),
            cache_dtype=cache_dtype,
            enable_prefix_caching=str(gpu.gpu.prefix_caching is not None),
        )
        for gpu in gpus
    ]
    yield from family(catalogue.CACHE_CONFIG, [(each, 1) for each in labels])


def _engines(gpus: tuple[GpuSnapshot, ...], model: str) -> Iterator[str]:
    """Metrics under vLLM's names: each GPU counts as an engine."""
    labels = [labelled(model_name=model, engine=gpu.gpu.uuid) for gpu in gpus]
    usage = [1 - gpu.free_kv_pages / gpu.gpu.num_kv_pages for gpu in gpus]
    yield from family(catalogue.KV_USAGE, zip(labels, usage, strict=True))
    for metric, counts in (
        (catalogue.PREFIX_QUERIES, [gpu.prefix_cache_queries for gpu in gpus]),
        (catalogue.PREFIX_HITS, [gpu.prefix_cache_hits for gpu in gpus]),
    ):
        yield from family(metric, zip(labels, counts, strict=True))
    on_gpu = (len(gpu.resident_adapters) for gpu in gpus)
    yield from family(catalogue.GPU_LORAS, zip(labels, on_gpu, strict=True))
    on_host = (gpu.num_cached_adapters or 0 for gpu in gpus)
    yield from family(catalogue.CPU_LORAS, zip(labels, on_host, strict=True))


def _gpus(gpus: tuple[GpuSnapshot, ...]) -> Iterator[str]:
    labels = [labelled(gpu=gpu.gpu.uuid, gpu_name=gpu.gpu.name, runner=gpu.runner_id) for gpu in gpus]
    rows = [
        (
            gpu.working_set,
            gpu.batch_size_mean,
            gpu.batch_size_max,
            gpu.gpu.max_batch_size,
            gpu.free_kv_pages,
            gpu.gpu.num_kv_pages,
            gpu.num_known_kv_pages,
            gpu.num_adapters,
            gpu.is_draining,
            gpu.steps,
            gpu.tokens,
        )
        for gpu in gpus
    ]
    for index, metric in enumerate(catalogue.GPU):
        yield from family(metric, zip(labels, (row[index] for row in rows), strict=True))
    ratios = [gpu.step_time_ratio for gpu in gpus]
    known = [(each, ratio) for each, ratio in zip(labels, ratios, strict=True) if ratio is not None]
    yield from family(catalogue.STEP_TIME_RATIO, known)
