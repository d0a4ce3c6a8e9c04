from prometheus_client.parser import text_string_to_metric_families

from punica_frontend.figures import Figures
from punica_frontend.metrics import PREFIX, cluster_families, exposition, frontend_families
from punica_serve.protocol import ClusterSnapshot, GpuInfo, GpuSnapshot, ScaleAdvice


def values(text: bytes) -> dict[str, float]:
    """Value of each sample, by name and label values."""
    return {
        " ".join([sample.name, *sample.labels.values()]): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_a_frontends_own_figures() -> None:
    figures = Figures(num_websockets=3)
    figures.num_ended.update({"stop": 2, "cancelled": 1})
    figures.first_token_s.observe(0.02)
    figures.first_token_s.observe(100.0)
    shown = values(exposition(frontend_families(figures, is_connected=True, is_draining=True)))
    assert shown["punica_requests_total stop"] == 2
    assert shown["punica_websockets"] == 3
    assert shown["punica_scheduler_connected"] == 1
    assert shown["punica_draining"] == 1
    buckets = [
        shown[f"punica_time_to_first_token_seconds_bucket {bound}"] for bound in ("0.01", "0.025", "60.0", "+Inf")
    ]
    assert buckets == [0, 1, 1, 2]
    assert shown["punica_time_to_first_token_seconds_sum"] == 100.02
    assert all(name.startswith(PREFIX) for name in shown)


def test_the_clusters_figures() -> None:
    info = GpuInfo("GPU-1", "cuda:0", 32, 16, 100, {})
    gpu = GpuSnapshot(info, "host", 5, 4, 2, 90, ("d1", "d2"), 7, 11, is_draining=True)
    advice = ScaleAdvice(num_more_gpus=2, releasable_runners=("idle",))
    cluster = ClusterSnapshot(1, 2, (gpu,), 9, 1, 1, {"migrations": 3, "unheard_of": 1}, advice)
    shown = values(exposition(cluster_families(cluster)))
    assert shown["punica_queue_length"] == 9
    assert shown["punica_migrations_total"] == 3
    assert shown["punica_evictions_total"] == 0
    assert shown["punica_advised_more_gpus"] == 2
    assert shown["punica_advised_releasable_runners"] == 1
    assert shown["punica_runner_releasable idle"] == 1
    of_gpu = {name.removeprefix("punica_gpu_"): value for name, value in shown.items() if name.endswith("GPU-1 host")}
    assert of_gpu["batch_size GPU-1 host"] == 4
    assert of_gpu["working_set GPU-1 host"] == 5
    assert of_gpu["free_kv_pages GPU-1 host"] == 90
    assert of_gpu["resident_adapters GPU-1 host"] == 2
    assert of_gpu["draining GPU-1 host"] == 1
    assert of_gpu["tokens_total GPU-1 host"] == 11
    assert all(name.startswith(PREFIX) for name in shown)
