"""The choice between FlashInfer and our own attention."""

from pathlib import Path

import pytest
import torch

from punica_serve.engine.cuda.attention_backend import (
    AttentionTime,
    fa3_modules,
    flashinfer_from,
    measured_times,
)
from punica_serve.engine.cuda.flashinfer_modules import Fa3Module
from tiny_config import tiny_config


def _time(new_tokens: int, gain: float, *, context: int = 4096, group: int = 1) -> AttentionTime:
    """``gain``: our time over FlashInfer's."""
    return AttentionTime(new_tokens, context, group, 100 * gain, 100)


def test_flashinfer_serves_from_the_size_on_from_which_it_stays_faster() -> None:
    times = [_time(128, 1.5), _time(256, 0.9), _time(512, 1.1), _time(2048, 1.6)]
    assert flashinfer_from(times, 1) == 512


@pytest.mark.parametrize("times", [[], [_time(512, 1.01)], [_time(512, 1.5), _time(2048, 0.9)]])
def test_it_serves_nothing_without_a_clear_gain_at_the_largest_size(times: list[AttentionTime]) -> None:
    assert flashinfer_from(times, 1) is None


def test_all_contexts_of_a_size_count_together() -> None:
    assert flashinfer_from([_time(512, 0.9, context=512), _time(512, 1.5, context=8192)], 1) == 512
    assert flashinfer_from([_time(512, 0.5, context=512), _time(512, 1.2, context=8192)], 1) is None


def test_layers_are_compared_with_those_of_the_nearest_group() -> None:
    times = [_time(512, 0.5, group=1), _time(512, 1.5, group=4)]
    assert flashinfer_from(times, 8) == 512
    assert flashinfer_from(times, 2) is None


def test_the_shipped_table_is_whole() -> None:
    assert all(
        min(time.triton_us, time.flashinfer_us) > 0 and time.context >= time.new_tokens for time in measured_times()
    )


@pytest.mark.parametrize("group", [1, 2, 4, 8])
def test_on_hopper_it_serves_long_prompts(group: int) -> None:
    assert flashinfer_from(measured_times(), group) in (256, 512)


def test_each_distinct_window_needs_a_module() -> None:
    (module,) = fa3_modules(tiny_config(), torch.bfloat16)
    assert (module.head_dim, module.window, module.soft_cap) == (8, None, 0.0)


def test_the_job_that_compiles_a_module_names_its_kind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FLASHINFER_WORKSPACE_BASE", f"{tmp_path}")
    job = Fa3Module(torch.bfloat16, 128, 4096, 0.0).job
    assert job.command[-4:] == ["bfloat16", "128", "1", "0"]
    assert job.lock == tmp_path / ".cache/flashinfer/punica-serve-bfloat16-128-1-0.lock"
