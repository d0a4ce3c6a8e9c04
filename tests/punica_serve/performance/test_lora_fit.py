"""The fit of LoRA's times, on samples whose times are known."""

from dataclasses import replace
from pathlib import Path

import pytest

from punica_kernels.gpu.linear import MAX_ROWS
from punica_serve.bench.lora_mixes import RANKS, Mix, mixes, sample_of
from punica_serve.errors import ConfigError
from punica_serve.performance.lora_fit import LoraSample, fit_lora, read_samples, samples_file, write_samples
from punica_serve.performance.lora_times import MAX_FUSED_ROWS
from punica_serve.performance.profile import load_profile

_SIZES = (1, 4, 8, 16, 32)
_PAGES = {rank: rank // 2 for rank in RANKS}
_NUM_ADAPTERS = {8: 32, 16: 32, 32: 32, 64: 16, 128: 8}


def _batches() -> list[Mix]:
    return mixes(_SIZES, _NUM_ADAPTERS)


def _distinct(mix: Mix, *, noise: float = 0.0) -> LoraSample:
    """A kernel that takes 0.25 ms, 0.002 for each page of a different adapter and 0.001 for each row."""
    sample = sample_of(mix, _PAGES, base_ms=4.0, step_ms=0.0)
    lora_ms = 0.25 + 0.002 * sample.num_pages + 0.001 * sample.num_rows
    return replace(sample, step_ms=4.0 + lora_ms * (1.0 + noise))


def test_a_kernel_that_reads_different_adapters_once_is_found() -> None:
    fit = fit_lora([_distinct(mix) for mix in _batches()])
    assert fit.r_squared == pytest.approx(1.0, abs=1e-4)
    assert fit.held_out_p95_error == pytest.approx(0.0, abs=1e-3)
    assert fit.lora.row_ms == pytest.approx(0.001, rel=0.05)
    assert fit.lora.ms[0] == pytest.approx(0.25, rel=0.01)


def test_what_rows_ranks_and_large_batches_cost_is_found() -> None:
    """The terms of the model, each of a size that no other one can stand for."""

    def sample(mix: Mix) -> LoraSample:
        one = sample_of(mix, _PAGES, base_ms=4.0, step_ms=0.0)
        lora_ms = 0.2 + 0.003 * one.num_pages + 0.002 * one.num_rows + 5e-5 * one.sum_ranks
        lora_ms += 0.005 * one.max_rank * min(one.num_rows, 4) / 4 + (0.9 if one.num_rows > 64 else 0.0)
        return replace(one, step_ms=4.0 + lora_ms)

    fit = fit_lora([sample(mix) for mix in mixes((*_SIZES, 64, 128), {**_NUM_ADAPTERS, 8: 128})])
    assert fit.held_out_p95_error == pytest.approx(0.0, abs=1e-3)
    lora = fit.lora
    assert (lora.row_ms, lora.rank_ms) == pytest.approx((0.002, 5e-5), rel=0.05)
    assert (lora.highest_rank_ms, lora.large_batch_ms) == pytest.approx((0.005, 0.9), rel=0.05)


def test_the_models_fit_steps_that_were_measured_on_a_gpu() -> None:
    """An H100's samples, by `punica-serve profile --shape llama-2-7b --largest 128`, within CaraServe's R² and ours."""
    fit = fit_lora(read_samples(Path(__file__).with_name("h100-7b.samples.csv")))
    assert fit.r_squared >= 0.99
    assert fit.held_out_p95_error is not None
    assert fit.held_out_p95_error <= 0.05
    assert min(fit.padded.r_squared, fit.unpadded.r_squared) >= 0.96
    assert load_profile("h100-7b").lora == fit.lora


def test_large_batches_begin_where_projections_leave_our_kernel() -> None:
    assert MAX_FUSED_ROWS == MAX_ROWS


def test_noise_lowers_the_fit_a_little() -> None:
    samples = [_distinct(mix, noise=0.05 if number % 2 else -0.05) for number, mix in enumerate(_batches())]
    fit = fit_lora(samples)
    assert 0.95 < fit.r_squared < 1.0
    assert fit.held_out_p95_error is not None
    assert 0.0 < fit.held_out_p95_error < 0.05


def test_the_papers_models_fit_kernels_that_read_each_rows_adapter() -> None:
    padded = [
        replace(one, step_ms=4.0 + 0.001 * one.num_rows * one.max_rank)
        for one in (sample_of(mix, _PAGES, 4.0, 0.0) for mix in _batches())
    ]
    fit = fit_lora(padded)
    assert (fit.padded.r_squared, fit.padded.slope_ms) == pytest.approx((1.0, 0.001))
    assert fit.unpadded.r_squared < 0.999, "mixed ranks are padded"


def test_times_never_fall() -> None:
    """A single batch that came out too fast does not bend the line down."""
    samples = [_distinct(mix) for mix in _batches()]
    largest = max(range(len(samples)), key=lambda number: samples[number].num_pages)
    samples[largest] = replace(samples[largest], step_ms=4.1)
    ms = fit_lora(samples).lora.ms
    assert list(ms) == sorted(ms)


def test_samples_can_be_read_again_and_fit_the_same(tmp_path: Path) -> None:
    samples = [_distinct(mix) for mix in _batches()]
    path = samples_file(tmp_path / "mine.yaml")
    write_samples(samples, path)
    assert path.name == "mine.samples.csv"
    assert read_samples(path) == samples
    assert fit_lora(read_samples(path)) == fit_lora(samples)


@pytest.mark.parametrize("text", ["", "kind,num_rows\nequal,many\n", "kind\nother\n"])
def test_another_file_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(text + "\n" if text else "kind\nx\n")
    with pytest.raises(ConfigError, match=r"x\.csv has no samples of `punica-serve profile`"):
        read_samples(tmp_path / "x.csv")
