"""The planner's count of a step's memory, and the settings that it names where steps do not fit."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from punica_serve.base_model.memory_budget import MemoryPlan
from punica_serve.base_model.rank import Rank
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.memory.step_memory import check_steps, largest_fitting, room_for_steps, step_bytes
from punica_serve.errors import ConfigError
from punica_serve.shapes import shape_of

GIB = 1 << 30
LLAMA = shape_of("llama-2-7b")
CONFIG = EngineConfig(model=Path("m"), max_batch_size=32, prefill_budget_tokens=512)


def changed(**settings: object) -> EngineConfig:
    return CONFIG.model_copy(update=settings)


def needs(config: EngineConfig) -> int:
    return step_bytes(config, LLAMA)


def test_the_count_is_that_of_the_tensors_which_are_there_together() -> None:
    rows, sampled, vocabulary = 512 + 31, 32, 32000
    layer = rows * (2 * 4096 + 2 * 22016 + 11008) * 2  # residual and norm, gate and up of base and LoRA, what is gated
    sampling = sampled * vocabulary * (2 + 3 * 4 + 1 + 4)
    assert needs(CONFIG) == layer + rows * 4096 * 2 + sampling
    assert needs(changed(cuda_graphs=False)) == layer + rows * 4096 * 2, "sampling takes what the layers leave"
    assert step_bytes(CONFIG, LLAMA.shard(Rank(0, 4))) < needs(CONFIG) / 2


def test_what_the_pools_leave_is_for_steps() -> None:
    plan = MemoryPlan(
        weight_bytes=3 * GIB, num_lora_pages=8, lora_bytes=GIB, kv_bytes=int(3.2 * GIB), kv_tokens=int(3.2 * GIB) >> 19
    )
    assert room_for_steps(changed(device_memory_share=0.75), LLAMA, plan, 8 * GIB) == 2 * GIB
    assert room_for_steps(changed(num_kv_pages=128), LLAMA, plan, 8 * GIB) == 3 * GIB, "8 MiB a page"
    assert room_for_steps(changed(num_kv_pages=1024), LLAMA, plan, 8 * GIB) < 0


@given(st.integers(1, 1 << 18), st.integers(1, 4096), st.integers(0, 40 * GIB), st.booleans())
def test_the_largest_that_fits_does_and_one_more_does_not(budget: int, batch: int, room: int, graphs: bool) -> None:
    config = changed(prefill_budget_tokens=budget, max_batch_size=batch, cuda_graphs=graphs)
    tokens = largest_fitting(config, "prefill_budget_tokens", needs, room)
    requests = largest_fitting(config, "max_batch_size", needs, room)
    for setting, value in (("prefill_budget_tokens", tokens), ("max_batch_size", requests)):
        assert value == 0 or needs(config.model_copy(update={setting: value})) <= room
        assert needs(config.model_copy(update={setting: value + 1})) > room
    assert (tokens >= budget) == (requests >= batch) == (needs(config) <= room)


@given(st.integers(1, 1 << 20), st.integers(1, 4096), st.integers(1, 40))
def test_every_setting_that_an_error_names_would_pass(budget: int, batch: int, num_gib: int) -> None:
    config, total = changed(prefill_budget_tokens=budget, max_batch_size=batch), num_gib * GIB
    room = total - int(config.device_memory_share * total)
    if needs(config) <= room:
        check_steps(config, LLAMA, "cuda:0", room=room, num_gpu_bytes=total)
        return
    with pytest.raises(ConfigError) as caught:
        check_steps(config, LLAMA, "cuda:0", room=room, num_gpu_bytes=total)
    for setting, value in re.findall(r"`engine\.(\w+)` to ([\d.]+)", caught.value.message):
        if setting == "device_memory_share":
            check_steps(config, LLAMA, "cuda:0", room=total - int(float(value) * total), num_gpu_bytes=total)
        else:
            smaller = config.model_copy(update={setting: int(value)})
            check_steps(smaller, LLAMA, "cuda:0", room=room, num_gpu_bytes=total)


@pytest.mark.parametrize("settings", [{}, {"num_kv_pages": 1200}])
def test_a_kvcache_that_could_not_hold_the_longest_request_is_not_advised(settings: dict[str, int]) -> None:
    """10 GiB more for steps leave less than the weights, or 124 pages where 256 hold a request."""
    with pytest.raises(ConfigError, match=r"; lower `engine\.prefill_budget_tokens` to \d+$"):
        check_steps(
            changed(prefill_budget_tokens=100_000, **settings), LLAMA, "cuda:0", room=4 * GIB, num_gpu_bytes=24 * GIB
        )


@pytest.mark.parametrize(
    ("settings", "message", "param"),
    [
        (
            {"prefill_budget_tokens": 100_000},
            r"steps of 32 requests and 100000 prompt tokens do not fit cuda:0: they take 12\.\d GiB at least, and"
            r" weights and pools leave 4\.0 GiB; lower `engine\.prefill_budget_tokens` to \d+ or"
            r" `engine\.device_memory_share` to 0\.6\d",
            "engine.prefill_budget_tokens",
        ),
        (
            {"max_batch_size": 8192},
            r"steps of 8192 requests and 512 prompt tokens .*; lower `engine\.max_batch_size` to \d+ or"
            r" `engine\.device_memory_share` to 0\.\d+",
            "engine.max_batch_size",
        ),
        (
            {"prefill_budget_tokens": 100_000, "num_kv_pages": 2000},
            r"steps .*; lower `engine\.prefill_budget_tokens` to \d+ or `engine\.num_kv_pages` to 9\d\d",
            "engine.prefill_budget_tokens",
        ),
        (
            {"prefill_budget_tokens": 1 << 20, "max_batch_size": 1 << 20},
            "steps .*; lower both, or take a larger GPU",
            "engine.max_batch_size",
        ),
    ],
)
def test_the_setting_that_is_too_large_is_named_with_the_number_that_fits(
    settings: dict[str, int], message: str, param: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{message}$") as caught:
        check_steps(changed(**settings), LLAMA, "cuda:0", room=4 * GIB, num_gpu_bytes=40 * GIB)
    assert caught.value.param == param
