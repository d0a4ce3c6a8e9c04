"""Measured over predicted time of steps."""

from typing import Any

import pytest

from punica_scheduler.core.decode_batch import DecodeBatch
from punica_scheduler.telemetry.step_time_ratios import EVERY, MIN_SAMPLES, StepTimeRatios
from punica_serve.performance.lora_load import NO_LORA, LoraLoad
from punica_serve.performance.profile import load_profile
from punica_serve.performance.step_time import StepTimeModel
from punica_serve.protocol import StepReport
from scheduler_in_words import NewAdapter, NewCluster

MODEL = StepTimeModel(load_profile("a100-40g-7b"))
FOUR_DECODES = DecodeBatch(4, 800.0, NO_LORA)


class Compared:
    """GPU A, which runs one batch for ever."""

    def __init__(self, batch: DecodeBatch | None = FOUR_DECODES) -> None:
        self.batch = batch
        self.predicted_s = MODEL.step_s(0, batch.num_rows, 800, batch.lora) if batch else 0.01
        self.warnings: list[tuple[str, float]] = []
        self.ratios = StepTimeRatios(MODEL, lambda _: self.batch, lambda *warning: self.warnings.append(warning))
        self.step = 0

    def run(self, ratio: float, samples: int = MIN_SAMPLES, **more: Any) -> None:
        """As many steps as make so many samples, each ``ratio`` times as long as predicted."""
        for _ in range(samples * EVERY):
            self.step += 1
            self.ratios.observe(report(self.step, ratio * self.predicted_s, **more))

    @property
    def ratio(self) -> float | None:
        return self.ratios.ratio("A")


def report(step: int, duration_s: float, **more: Any) -> StepReport:
    columns: dict[str, Any] = {"assignments": (1, 2, 3, 4), "positions": (step,) * 4, "token_ids": (7,) * 4}
    counts: dict[str, Any] = {"batch_size": 4, "num_prefill_tokens": 0, "num_adapters": 0, "free_kv_pages": 0}
    fields: dict[str, Any] = {"gpu_uuid": "A", "epoch": 0, "step": step, "applied_seq": 0, "duration_s": duration_s}
    return StepReport(**(fields | counts | columns | more))


def test_the_ratio_is_of_measured_to_predicted_time() -> None:
    gpu = Compared()
    gpu.run(1.1)
    assert gpu.ratio == pytest.approx(1.1, abs=1e-3)


def test_the_prediction_counts_the_adapters_of_the_batch() -> None:
    lora = LoraLoad(num_rows=4, sum_ranks=256, max_rank=64, num_pages=400)
    assert MODEL.step_s(0, 4, 800, lora) > MODEL.step_s(0, 4, 800)
    gpu = Compared(DecodeBatch(4, 800.0, lora))
    gpu.run(1.0)
    assert gpu.ratio == pytest.approx(1.0, abs=1e-3)


def test_a_few_samples_are_not_enough() -> None:
    gpu = Compared()
    gpu.run(3.0, MIN_SAMPLES - 1)
    assert gpu.ratio is None and not gpu.warnings
    gpu.run(3.0, 1)
    assert gpu.ratio == pytest.approx(3.0, abs=1e-3) and len(gpu.warnings) == 1


@pytest.mark.parametrize(
    "more",
    [
        {"num_prefill_tokens": 5},
        {"batch_size": 3},
        {"finished": ((1, "stop"),)},
        {"assignments": (), "positions": (), "token_ids": ()},
    ],
)
def test_steps_that_the_sums_do_not_describe_are_not_compared(more: dict[str, Any]) -> None:
    gpu = Compared()
    gpu.run(3.0, **more)
    gpu.run(1.0)
    assert gpu.ratio == pytest.approx(1.0, abs=1e-3)


def test_a_step_without_a_time_is_not_compared() -> None:
    gpu = Compared()
    gpu.run(0.0)
    assert gpu.ratio is None


def test_nothing_is_compared_while_no_batch_is_known() -> None:
    gpu = Compared(None)
    gpu.run(3.0)
    assert gpu.ratio is None


@pytest.mark.parametrize("wrong", [1.6, 0.5])
def test_a_wrong_profile_is_warned_of_once_until_it_was_right_again(wrong: float) -> None:
    gpu = Compared()
    gpu.run(1.0)
    assert not gpu.warnings
    gpu.run(wrong, 200)
    assert [uuid for uuid, _ in gpu.warnings] == ["A"]
    assert abs(gpu.warnings[0][1] - 1) > 0.2
    gpu.run(1.0, 200)
    assert len(gpu.warnings) == 1
    gpu.run(wrong, 200)
    assert len(gpu.warnings) == 2


def test_noise_at_the_border_is_warned_of_once() -> None:
    gpu = Compared()
    for _ in range(5):
        gpu.run(1.23, 100)
        gpu.run(1.18, 100)
    assert len(gpu.warnings) == 1


def test_one_step_that_hung_is_no_warning() -> None:
    gpu = Compared()
    gpu.run(1.0, 100)
    gpu.run(100.0, 1)
    assert gpu.ratio is not None and 1.0 < gpu.ratio < 1.2
    assert not gpu.warnings


def test_a_gpu_that_left_begins_anew() -> None:
    gpu = Compared()
    gpu.run(3.0)
    gpu.ratios.forget("A")
    assert gpu.ratio is None
    gpu.run(1.0)
    assert gpu.ratio == pytest.approx(1.0, abs=1e-3)


def runs(new_cluster: NewCluster, adapter: NewAdapter, model: StepTimeModel | None) -> Any:
    """GPU A, whose steps of two requests take 10 ms, for long enough."""
    cluster = new_cluster(model)
    num_steps = (MIN_SAMPLES + 1) * EVERY
    cluster.gpu_joins("A", pages=400)
    cluster.arrives("a", max_tokens=num_steps + 10, lora=adapter("d1"))
    cluster.arrives("b", max_tokens=num_steps + 10)
    for _ in range(num_steps):
        cluster.steps("A", "a b")
    return cluster


def ratio_of_a(cluster: Any) -> Any:
    (gpu,) = cluster.observer.snapshot(cluster.now_ns).gpus
    assert cluster.observer.gpu("A", cluster.now_ns).gpu.step_time_ratio == gpu.step_time_ratio
    return gpu.step_time_ratio


def test_a_live_gpu_is_compared(new_cluster: NewCluster, adapter: NewAdapter) -> None:
    cluster = runs(new_cluster, adapter, MODEL)
    two_decodes_s = MODEL.step_s(0, 2, 600)
    assert ratio_of_a(cluster) == pytest.approx(0.01 / two_decodes_s, rel=0.1)
    assert cluster.warnings == ["A"]


def test_without_a_model_there_is_no_ratio(new_cluster: NewCluster, adapter: NewAdapter) -> None:
    cluster = runs(new_cluster, adapter, None)
    assert ratio_of_a(cluster) is None and not cluster.warnings


def test_a_live_gpu_that_left_is_forgotten(new_cluster: NewCluster, adapter: NewAdapter) -> None:
    cluster = runs(new_cluster, adapter, MODEL)
    cluster.gpu_is_lost("A")
    cluster.gpu_joins("A")
    assert ratio_of_a(cluster) is None


def test_a_step_is_not_compared_while_a_request_awaits_its_first_token(
    new_cluster: NewCluster, adapter: NewAdapter
) -> None:
    cluster = new_cluster()
    assert cluster.scheduler.decodes("A") is None
    cluster.gpu_joins("A", pages=64)
    cluster.arrives("a", prompt=8, lora=adapter("d1"))
    cluster.steps("A", "a")
    batch = cluster.scheduler.decodes("A")
    assert batch is not None and batch.num_rows == batch.lora.num_rows == 1
    cluster.arrives("b")
    assert cluster.scheduler.decodes("A") is None
