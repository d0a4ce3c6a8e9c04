"""The choice between FlashInfer and our own attention, by measured times."""

import pytest

from punica_serve.engine.cuda.attention_choice import Choice, Layers, choose
from punica_serve.performance.attention_table import AttentionTable, AttentionTime, shipped_table

LAYERS = Layers(32, 32, 128)


def _time(new_tokens: int, gain: float, *, context: int = 4096, group: int = 1, prompts: int = 1) -> AttentionTime:
    """``gain``: our time over FlashInfer's."""
    return AttentionTime(
        heads=32,
        kv_heads=32 // group,
        head_dim=128,
        prompts=prompts,
        new_tokens=new_tokens,
        context=context,
        triton_us=100.0 * gain,
        flashinfer_us=100.0,
    )


def _choose(times: list[AttentionTime], layers: Layers = LAYERS, num_prefills: int = 1) -> Choice:
    return choose(AttentionTable(version=1, device="d", source="s", times=tuple(times)), layers, num_prefills)


def test_flashinfer_serves_from_the_size_on_from_which_it_stays_faster() -> None:
    assert _choose([_time(128, 1.5), _time(256, 0.9), _time(512, 1.1), _time(2048, 1.6)]) == (512, "")


@pytest.mark.parametrize("times", [[_time(512, 1.01)], [_time(512, 1.5), _time(2048, 0.9)]])
def test_it_serves_nothing_without_a_clear_gain_at_the_largest_size(times: list[AttentionTime]) -> None:
    assert _choose(times) == (None, "FlashInfer is nowhere faster")


def test_all_contexts_of_a_bucket_count_together() -> None:
    assert _choose([_time(500, 0.9, context=512), _time(512, 1.5, context=8192)]).first_rows == 512
    assert _choose([_time(500, 0.5, context=512), _time(512, 1.2, context=8192)]).first_rows is None


def test_layers_are_compared_with_those_of_the_nearest_group() -> None:
    times = [_time(512, 0.5, group=1), _time(512, 1.5, group=4)]
    assert _choose(times, Layers(32, 4, 128)).first_rows == 512
    assert _choose(times, Layers(32, 16, 128)).first_rows is None


def test_heads_of_another_size_are_not_guessed() -> None:
    assert _choose([_time(512, 1.5)], Layers(32, 32, 64)) == (None, "no times of heads of 64 were measured")


def test_several_prompts_a_step_are_compared_with_the_most_that_were_measured() -> None:
    times = [_time(512, 1.5), _time(512, 0.4, prompts=2), _time(512, 1.2, prompts=4)]
    assert "several prompts" in _choose(times[:1], num_prefills=4).reason
    assert [_choose(times, num_prefills=num).first_rows for num in (1, 2, 3, 4, 8)] == [512, None, None, 512, 512]
    assert "no times of one prompt" in _choose(times[1:]).reason


@pytest.mark.parametrize("kv_heads", [32, 16, 8, 4])
@pytest.mark.parametrize("num_prefills", [1, 4])
def test_by_the_h100s_table_ours_serve_all_prompts(kv_heads: int, num_prefills: int) -> None:
    table = shipped_table("NVIDIA H100 80GB HBM3")
    assert table is not None
    assert choose(table, Layers(32, kv_heads, 128), num_prefills) == (None, "FlashInfer is nowhere faster")


def test_by_the_h200s_table_ours_serve_prompts_one_at_a_time() -> None:
    table = shipped_table("NVIDIA H200")
    assert table is not None
    assert choose(table, Layers(32, 8, 128), 1) == (None, "FlashInfer is nowhere faster")
    assert "several prompts" in choose(table, Layers(32, 8, 128), 4).reason
