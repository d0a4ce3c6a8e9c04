"""The memory that steps take on a GPU beside weights and pools, and the largest settings that fit. Free of torch."""

from bisect import bisect_right
from collections.abc import Callable
from typing import Literal

from punica_serve.base_model.memory_budget import MemoryPlan, kv_bytes_per_token
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.config.engine_section import EngineConfig
from punica_serve.errors import ConfigError
from punica_serve.numbers import MAX_COUNT, counted, gib
from punica_serve.paging.kv_window import kv_window_of
from punica_serve.paging.page_rule import PageRule

#: Bytes that steps of these settings take.
StepBytes = Callable[[EngineConfig], int]

#: The settings of the engine that make steps larger.
StepSetting = Literal["prefill_budget_tokens", "max_batch_size"]
_SETTINGS: tuple[StepSetting, ...] = ("prefill_budget_tokens", "max_batch_size")
#: Bytes for each row and token of the vocabulary where all sampling parameters are used, besides the logits: two copies
#: in float32, one of which penalties change, a float32 one to sample from, and the counts of earlier tokens.
_SAMPLING_BYTES = 3 * 4 + 4 + 1


def step_bytes(config: EngineConfig, share: ModelConfig) -> int:
    """Bytes that the largest step of a rank takes at least: tensors that are there together, by the code of the model.

    Tables, workspaces of kernels, their code and the driver's part of CUDA graphs come on top.
    """
    value_bytes, vocabulary = config.value_bytes_of(share), len(share.vocabulary)
    num_decodes = config.max_batch_size - 1
    num_rows = config.prefill_budget_tokens + num_decodes
    num_sampled = num_decodes + min(config.num_prefills, config.prefill_budget_tokens)
    gate_up, down = share.spec.group("gate_up"), share.spec.group("down")
    # Where the MLP is gated: the residual, its norm, gate and up of the base and of LoRA, and what the gate lets pass.
    layer = num_rows * (2 * share.hidden_size + 2 * gate_up.out_features + down.in_features) * value_bytes
    attended = num_rows * share.num_attention_heads * share.head_dim * value_bytes
    forward = max(layer, num_sampled * vocabulary * value_bytes)
    sampling = num_sampled * vocabulary * (value_bytes + _SAMPLING_BYTES)
    # Graphs keep their memory; without them sampling reuses it.
    return attended + (forward + sampling if config.cuda_graphs else max(forward, sampling))


def plan_memory(config: EngineConfig, share: ModelConfig, num_gpu_bytes: int) -> MemoryPlan:
    """How a rank of this config divides its GPU's memory."""
    return MemoryPlan.of(
        share,
        num_gpu_bytes=num_gpu_bytes,
        share=config.device_memory_share,
        num_value_bytes=config.value_bytes_of(share),
        num_lora_pages=config.num_lora_pages,
        max_batch_size=config.max_batch_size,
        rank=config.expected_lora_rank,
        limits=config.lora_limits,
    )


def room_for_steps(config: EngineConfig, share: ModelConfig, plan: MemoryPlan, num_gpu_bytes: int) -> int:
    """Bytes of a GPU that weights and pools leave; negative where `engine.num_kv_pages` takes more than there is."""
    if config.num_kv_pages is None:
        return num_gpu_bytes - int(config.device_memory_share * num_gpu_bytes)
    return num_gpu_bytes - plan.weight_bytes - plan.lora_bytes - config.num_kv_pages * _page_bytes(config, share)


def largest_fitting(
    config: EngineConfig, setting: StepSetting, needs: StepBytes, room: int, limit: int = MAX_COUNT
) -> int:
    """The largest value of a setting up to a limit with which steps fit, the others as they are; 0: none."""
    return bisect_right(range(1, limit + 1), room, key=lambda value: needs(config.model_copy(update={setting: value})))


def check_steps(config: EngineConfig, share: ModelConfig, device: str, *, room: int, num_gpu_bytes: int) -> None:
    """Raises ConfigError, with the settings that fit, if the steps of a rank surely exceed the ``room`` in bytes."""

    def needs(config: EngineConfig) -> int:
        return step_bytes(config, share)

    if (needed := needs(config)) > room:
        told = f"they take {gib(needed)} at least, and weights and pools leave {gib(max(0, room))}"
        raise steps_refused(config, share, device, told, needs, room=room, num_gpu_bytes=num_gpu_bytes)


def steps_refused(
    config: EngineConfig,
    share: ModelConfig,
    device: str,
    told: str,
    needs: StepBytes,
    *,
    room: int,
    num_gpu_bytes: int,
) -> ConfigError:
    """The error of steps that do not fit, about the setting that must be lowered the least. ``told``: the sizes."""
    fits = {setting: largest_fitting(config, setting, needs, room, getattr(config, setting)) for setting in _SETTINGS}
    kept = {setting: value / getattr(config, setting) for setting, value in fits.items() if value}
    advice = [f"`engine.{each}` to {fits[each]}" for each in sorted(kept, key=kept.__getitem__, reverse=True)]
    advice += _smaller_cache(config, share, needs(config) - room, num_gpu_bytes)
    steps = f"steps of {counted(config.max_batch_size, 'request')}"
    steps += f" and {counted(config.prefill_budget_tokens, 'prompt token')}"
    largest = max(kept, key=kept.__getitem__, default="max_batch_size")
    message = f"{steps} do not fit {device}: {told}; lower {' or '.join(advice) or 'both, or take a larger GPU'}"
    return ConfigError(message, param=f"engine.{largest}")


def _smaller_cache(config: EngineConfig, share: ModelConfig, excess: int, num_gpu_bytes: int) -> list[str]:
    """The setting that leaves steps so many bytes more of the KvCache's, if what is left holds the longest request."""
    longest = PageRule.of(config.page_size, kv_window_of(config, share)).held_by(config.context_of(share))
    if config.num_kv_pages is not None:
        pages = config.num_kv_pages - max(1, -(-excess // _page_bytes(config, share)))
        return [f"`engine.num_kv_pages` to {pages}"] if pages >= longest else []
    lower = int(100 * (config.device_memory_share - max(0, excess) / num_gpu_bytes) - 1e-9) / 100
    plan = plan_memory(config.model_copy(update={"device_memory_share": lower}), share, num_gpu_bytes)
    return [f"`engine.device_memory_share` to {lower}"] if plan.kv_tokens >= longest * config.page_size else []


def _page_bytes(config: EngineConfig, share: ModelConfig) -> int:
    return config.page_size * kv_bytes_per_token(share, config.value_bytes_of(share))
