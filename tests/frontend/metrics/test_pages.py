"""The metrics pages, read by Prometheus' own parsers."""

import shutil
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from msgspec.structs import replace
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.parser import text_string_to_metric_families

from punica_frontend.metrics import catalogue, table
from punica_frontend.metrics.adapters import NamedAdapter, adapter_lines
from punica_frontend.metrics.cluster import cluster_lines
from punica_frontend.metrics.metrics import AnswerKind, Metrics, RequestParams
from punica_frontend.metrics.own import own_lines
from punica_frontend.metrics.text import Metric, family, labelled
from punica_serve.protocol import (
    AdapterResidency,
    ClusterSnapshot,
    Ending,
    GpuInfo,
    GpuSnapshot,
    ScaleAdvice,
    TokenHistogram,
)

DOCUMENTED = Path(__file__).parents[3] / "docs" / "metrics.md"


def gpu(uuid: str = "GPU-1") -> GpuSnapshot:
    info = GpuInfo(uuid, "cuda:0", 32, 16, 100, {}, "host/0")
    return GpuSnapshot(
        info,
        "host",
        5,
        90,
        ("d1", "d2"),
        7,
        11,
        is_draining=True,
        num_cached_adapters=3,
        batch_size_mean=3.5,
        batch_size_max=4,
        num_adapters=2,
        step_time_ratio=1.25,
    )


CLUSTER = ClusterSnapshot(
    1,
    2,
    (gpu(),),
    9,
    1,
    1,
    {"migrations": 3, "unheard_of": 1},
    ScaleAdvice(2, ("idle",)),
    step_tokens=TokenHistogram((1, 8), (4, 2, 1), 600),
)
ADAPTERS = [
    NamedAdapter("shared/roman", True, AdapterResidency("d1", gpus=("GPU-1",), hosts=("GPU-1",))),
    NamedAdapter("acme/hex", False, AdapterResidency("d2", hosts=("GPU-1",))),
    NamedAdapter("acme/new", False, None),
]


def metrics() -> Metrics:
    """A frontend's metrics with a value for every label."""
    metrics = Metrics()
    metrics.refused("adapter_not_found")
    metrics.num_cut["stalled"] += 2
    metrics.unknown_field("tools", "refused")
    metrics.unknown_field(None, "ignored")
    metrics.num_websockets = 3
    for adapter, outcome in (("shared/roman", "stop"), ("acme/hex", "cancelled")):
        request = metrics.begin(10.0, RequestParams(4, 64), adapter=adapter, tenant="acme")
        request.add_tokens(1, 10.02)
        request.add_tokens(2, 110.0)
        request.outcome = outcome
        request.end(111.0)
        request.ended_in_cluster(Ending(1, 3, "stop", prefill_s=0.5))
    metrics.num_answers[AnswerKind("/v1/adapters/{name}", "GET", "4xx")] += 5
    metrics.begin(10.0, RequestParams(4, 64), adapter="acme/new", tenant="acme")
    return metrics


def own() -> str:
    return "".join(own_lines(metrics(), "numbers", is_connected=True, is_draining=True))


def cluster() -> str:
    return "".join(cluster_lines(CLUSTER, "numbers", cache_dtype="bfloat16"))


def adapters() -> str:
    return "".join(adapter_lines(metrics(), ADAPTERS, CLUSTER, "numbers", now_s=99.5))


def values(text: str) -> dict[str, float]:
    """Value of each sample, by name and label values."""
    return {
        " ".join([sample.name, *sample.labels.values()]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_frontends_own_figures() -> None:
    shown = values(own())
    assert shown["vllm:request_success_total numbers stop"] == 1
    assert shown["vllm:request_success_total numbers abort"] == 1
    assert shown["vllm:num_requests_waiting numbers"] == 1
    assert shown["vllm:num_requests_running numbers"] == 0
    assert shown["vllm:prompt_tokens_total numbers"] == 12
    assert shown["punica_requests_failed_total adapter_not_found"] == 1
    assert shown["http_requests_total /v1/adapters/{name} GET 4xx"] == 5
    assert shown["punica_connections_cut_total stalled"] == 2
    assert shown["punica_unknown_fields_total tools refused"] == 1
    assert shown["punica_unknown_fields_total other ignored"] == 1
    assert shown["punica_websockets"] == 3
    assert shown["punica_scheduler_connected"] == 1
    assert shown["punica_draining"] == 1
    assert shown["punica_adapter_requests_total shared/roman"] == 1
    assert shown["punica_adapter_generation_tokens_total other"] == 0
    assert shown["punica_tenant_generation_tokens_total acme"] == 6


def test_the_buckets_of_a_histogram_add_up() -> None:
    shown = values(own())
    name = "vllm:inter_token_latency_seconds"
    buckets = [shown[f"{name}_bucket numbers {bound}"] for bound in ("1.0", "5.0", "+Inf")]
    assert buckets == [0, 0, 4]
    assert shown[f"{name}_count numbers"] == 4
    assert shown[f"{name}_sum numbers"] == pytest.approx(2 * 99.98)


def test_the_times_and_parameters_of_completed_requests() -> None:
    shown = values(own())
    for name, value in (
        ("prefill_time_seconds", 0.5),
        ("decode_time_seconds", 99.98),
        ("inference_time_seconds", 100.48),
        ("time_per_output_token_seconds", 49.99),
        ("params_n", 1),
        ("params_max_tokens", 64),
    ):
        assert shown[f"vllm:request_{name}_sum numbers"] == pytest.approx(value)
        assert shown[f"vllm:request_{name}_count numbers"] == 1


def test_the_tokens_of_steps_and_the_shapes_of_caches() -> None:
    shown = values(cluster())
    buckets = [shown[f"vllm:iteration_tokens_total_bucket numbers {bound}"] for bound in ("1", "8", "+Inf")]
    assert buckets == [4, 6, 7]
    assert shown["vllm:iteration_tokens_total_sum numbers"] == 600
    assert shown["vllm:cache_config_info GPU-1 16 100 bfloat16 False"] == 1


def test_a_scheduler_that_reports_no_steps_has_none() -> None:
    before = ClusterSnapshot(1, 2, (), 0, 1, 0, {})
    shown = values("".join(cluster_lines(before, "numbers", cache_dtype="bfloat16")))
    assert shown["vllm:iteration_tokens_total_count numbers"] == 0


def test_the_clusters_figures() -> None:
    shown = values(cluster())
    assert shown["punica_cluster_queue_length"] == 9
    assert shown["punica_cluster_migrations_total"] == 3
    assert shown["punica_cluster_evictions_total"] == 0
    assert shown["punica_cluster_advised_more_gpus"] == 2
    assert shown["punica_cluster_runner_releasable idle"] == 1
    assert shown["vllm:kv_cache_usage_perc numbers GPU-1"] == pytest.approx(0.1)
    assert shown["vllm:num_gpu_loaded_lora_adapters numbers GPU-1"] == 2
    assert shown["vllm:num_cpu_loaded_lora_adapters numbers GPU-1"] == 3
    of_gpu = {
        name.removeprefix("punica_gpu_"): value for name, value in shown.items() if name.endswith("GPU-1 host/0 host")
    }
    of_gpu = {name.partition(" ")[0]: value for name, value in of_gpu.items()}
    assert (of_gpu["batch_size"], of_gpu["batch_size_max"], of_gpu["working_set"]) == (3.5, 4, 5)
    assert (of_gpu["draining"], of_gpu["tokens_total"], of_gpu["step_time_ratio"]) == (1, 11, 1.25)


def test_a_gpu_without_a_step_time_ratio_has_no_sample_of_it() -> None:
    told = replace(CLUSTER, gpus=(replace(gpu(), step_time_ratio=None),))
    page = "".join(cluster_lines(told, "numbers", cache_dtype="bfloat16"))
    assert not any(name.startswith("punica_gpu_step_time_ratio") for name in values(page))


def test_where_the_adapters_are() -> None:
    shown = values(adapters())
    assert shown["vllm:lora_requests_info numbers 32 shared/roman acme/new"] == 99.5
    loaded = {name for name in shown if name.startswith("vllm:lora_adapter_loaded")}
    assert loaded == {
        "vllm:lora_adapter_loaded numbers shared/roman gpu true",
        "vllm:lora_adapter_loaded numbers shared/roman cpu true",
        "vllm:lora_adapter_loaded numbers acme/hex cpu false",
    }


@pytest.mark.parametrize(
    ("texts", "metrics"), [((own, adapters), catalogue.OWN), ((cluster,), catalogue.CLUSTER)], ids=["own", "cluster"]
)
def test_the_page_and_the_catalogue_have_the_same_metrics(texts: Iterable[object], metrics: tuple[Metric, ...]) -> None:
    told = {
        shape: shape
        for text in texts
        if callable(text)
        for shape in map(_shape, text_string_to_metric_families(text()))
    }
    assert set(told) == {(_parsed(metric), metric.kind, metric.labels) for metric in metrics}


def _parsed(metric: Metric) -> str:
    """The parser's name, without the suffix of a counter."""
    return metric.name.removesuffix("_total") if metric.kind == "counter" else metric.name


def _shape(family: Family) -> tuple[str, str, tuple[str, ...]]:
    labels = [tuple(label for label in sample.labels if label != "le") for sample in family.samples]
    assert len(set(labels)) == 1
    return family.name, family.type, labels[0]


def test_a_label_may_hold_what_means_something_to_prometheus() -> None:
    strange = 'a "quoted" \\ line\nbreak'
    text = "".join(family(Metric("x", "gauge", "X."), [(labelled(name=strange), 0.1)]))
    (read,) = text_string_to_metric_families(text)
    assert (read.samples[0].labels, read.samples[0].value) == ({"name": strange}, 0.1)


def test_the_page_is_bounded_whatever_is_used() -> None:
    one, many = Metrics(num_named=3), Metrics(num_named=3)
    for subject, num_adapters in ((one, 4), (many, 2_000)):
        for number in range(num_adapters):
            subject.begin(0.0, RequestParams(1, 64), adapter=f"acme/{number}", tenant=f"tenant-{number}").end(1.0)
    lines = [
        "".join(own_lines(subject, "numbers", is_connected=True, is_draining=False)).count("\n")
        for subject in (one, many)
    ]
    assert lines[0] == lines[1]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)")
@pytest.mark.parametrize("text", [own, cluster, adapters])
def test_promtool_finds_fault_with_nothing_but_vllms_names(text: Callable[[], str]) -> None:
    checked = subprocess.run(["promtool", "check", "metrics"], input=text(), capture_output=True, text=True, timeout=60)
    assert not checked.stdout
    faults = [line for line in checked.stderr.splitlines() if line]
    assert all(line.startswith("vllm:") for line in faults), faults


def test_the_page_in_docs_is_up_to_date() -> None:
    page = DOCUMENTED.read_text()
    assert page == table.tables(page), "run `make docs`"
    for metric in (*catalogue.OWN, *catalogue.CLUSTER):
        assert f"| `{metric.name}` |" in page
