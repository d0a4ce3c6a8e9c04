"""A profile that is measured on a tiny model is one that a simulated GPU can read."""

from pathlib import Path

import pytest
from rich.progress import Progress

from punica_serve.base_model.config_json import read_model_config
from punica_serve.bench.batching import BatchingMeasured, DecodeTime
from punica_serve.bench.profile import decode_times, load_gb_per_s, measure_profile
from punica_serve.bench.subject import Subject
from punica_serve.config.engine_section import EngineConfig
from punica_serve.errors import ConfigError
from punica_serve.performance.lora_fit import fit_lora
from punica_serve.performance.lora_load import LoraLoad
from punica_serve.performance.profile import ModelShape, load_profile, write_profile
from punica_serve.performance.step_time import StepTimeModel


def _subject(tiny_llama: Path, **settings: int) -> Subject:
    config = EngineConfig(model=tiny_llama, dtype="float32", max_batch_size=2, cpu_threads=1, **settings)
    return Subject.of(config, "cpu")


def test_a_measured_profile_can_be_read_again(tiny_llama: Path, tmp_path: Path) -> None:
    measured = measure_profile(_subject(tiny_llama, num_kv_pages=64), 4, Progress(disable=True))
    profile = measured.profile
    write_profile(profile, tmp_path / "folder" / "mine.yaml")
    assert load_profile("mine.yaml", tmp_path / "folder") == profile
    assert (profile.decode.batch, profile.decode.context) == ((1, 2), (64,))
    assert (profile.prefill.tokens, profile.lora.kind) == ((1, 64), "distinct")
    assert profile.adapter_load.gb_per_s > 0
    assert {sample.num_rows for sample in measured.samples} == {1, 2}
    assert fit_lora(measured.samples) == measured.fit
    assert StepTimeModel(profile).step_s(64, 2, 128, LoraLoad(2, 8, 4, 8)) > 0


@pytest.mark.slow
def test_so_can_that_of_a_group(tiny_llama: Path) -> None:
    """Each part has a process of its own: a process that was in a group can't be in another one that maps memory."""
    config = EngineConfig(model=tiny_llama, dtype="float32", max_batch_size=1, cpu_threads=1, num_kv_pages=32)
    subject = Subject.of_group(config, "cpu,cpu")
    profile = measure_profile(subject, 4, Progress(disable=True)).profile
    assert (profile.group_size, profile.model) == (2, ModelShape.of(read_model_config(tiny_llama)))
    assert profile.name == f"cpu, {subject.model.name}, group of 2 in float32"
    assert profile.decode.ms[0][0] > 0 and profile.adapter_load.gb_per_s > 0


@pytest.mark.parametrize("settings", [{"num_kv_pages": 64, "max_context": 100}, {"num_kv_pages": 6}])
def test_an_engine_of_short_context_can_not_be_measured(settings: dict[str, int], tiny_llama: Path) -> None:
    with pytest.raises(ConfigError, match="tokens is too short to be measured"):
        measure_profile(_subject(tiny_llama, **settings), 4, Progress(disable=True))


def test_contexts_that_the_kv_cache_does_not_hold_are_extrapolated() -> None:
    rows = [(1, 128, 4.0), (1, 512, 4.4), (1, 2048, 6.0), (8, 128, 5.0), (8, 512, 6.0), (64, 128, 9.0)]
    decodes = tuple(DecodeTime("none", context, size, ms / 1e3, context) for size, context, ms in rows)
    times = decode_times(BatchingMeasured((), decodes), (128, 512, 2048))
    assert (times.batch, times.ms) == ((1, 8), ((4.0, 4.4, 6.0), (5.0, 6.0, 10.0))), "64 rows have one context only"


@pytest.mark.parametrize(
    ("num_bytes", "load_s", "gb_per_s"),
    [(80_000_000, 0.0016, 50.0), (20_000, 0.3, 6.667e-05), (20_000, 0.0, 1000.0), (20_000, -0.1, 1000.0)],
)
def test_a_load_has_a_rate_however_slow_or_short(num_bytes: int, load_s: float, gb_per_s: float) -> None:
    assert load_gb_per_s(num_bytes, load_s) == gb_per_s
