"""The batch size that `engine.max_batch_size: auto` stands for, by a performance profile.

It is the largest of a few sizes whose decode step keeps `engine.target_step_ms` and whose pools fit. A GPU's memory is
known to its worker alone, which may take a smaller one yet.
"""

from typing import Literal, NamedTuple

from punica_serve.base_model.config_json import read_model_config
from punica_serve.base_model.lora_layout import LORA_GROUPS, pages_of_rank
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.config.cluster import ClusterConfig
from punica_serve.config.engine_section import EngineConfig
from punica_serve.config.fields import AUTO_BATCH
from punica_serve.errors import ConfigError
from punica_serve.paging.kv_window import kv_window_of
from punica_serve.paging.page_rule import PageRule
from punica_serve.performance.lora_load import LoraLoad
from punica_serve.performance.profile import load_profile
from punica_serve.performance.step_time import StepTimeModel
from punica_serve.protocol import SIMULATED_DEVICE

AUTO_SIZES = (32, 64, 128, 256)
_KEY = "scheduler.profile"

#: The limit that kept the size from being larger: a setting, a GPU's memory, or the largest size.
BatchLimit = Literal["max_batch_size", "target_step_ms", "num_kv_pages", "num_lora_pages", "memory", "largest_size"]


class AutoBatch(NamedTuple):
    """A batch size, and its limit."""

    size: int
    limit: BatchLimit


def auto_batch_of(config: ClusterConfig, engine: EngineConfig) -> AutoBatch:
    """The batch size of a cluster's engine, ``auto`` or not; ``engine`` is the config's, with the rank to expect.

    Raises ConfigError if ``auto`` has no profile, or aims at requests that are too long for the model.
    """
    if engine.max_batch_size != AUTO_BATCH:
        return AutoBatch(engine.max_batch_size, "max_batch_size")
    model = read_model_config(engine.model)
    _check_context(engine, model)
    return largest_batch(engine, model, auto_times(config))


def _check_context(engine: EngineConfig, model: ModelConfig) -> None:
    longest = engine.context_of(model)
    if engine.target_context > longest:
        message = f"`engine.target_context` is {engine.target_context}, but requests have {longest} tokens at most"
        raise ConfigError(
            f"{message}; lower it, so that `max_batch_size: auto` has a batch to aim at", param="engine.target_context"
        )


def auto_times(config: ClusterConfig) -> StepTimeModel:
    """The profile by which ``auto`` chooses. Raises ConfigError without one."""
    simulated = config.simulation.profile if SIMULATED_DEVICE in config.runner.devices else None
    name = config.scheduler.profile or simulated
    if name is None:
        message = f"`engine.max_batch_size: auto` needs to know how long steps take; set `{_KEY}`, or give a number"
        raise ConfigError(message, param="engine.max_batch_size")
    return StepTimeModel(load_profile(name, param=_KEY))


def largest_batch(engine: EngineConfig, model: ModelConfig, times: StepTimeModel) -> AutoBatch:
    """The largest size that its limits allow; the smallest of all if they allow none."""
    size = AUTO_SIZES[0]
    for next_size in AUTO_SIZES:
        if limit := _limit_of(next_size, engine, model, times):
            return AutoBatch(size, limit)
        size = next_size
    return AutoBatch(size, "largest_size")


def step_ms(size: int, engine: EngineConfig, times: StepTimeModel) -> float:
    """A decode step of so many requests, with the context and the share of adapters that `auto` aims at."""
    rank, num_adapters = engine.expected_lora_rank, round(engine.target_distinct * size)
    num_pages = num_adapters * pages_of_rank(rank) * len(LORA_GROUPS)
    lora = LoraLoad(size, size * rank, rank, num_pages) if num_adapters else LoraLoad()
    return 1e3 * times.step_s(0, size, size * engine.target_context, lora)


def _limit_of(size: int, engine: EngineConfig, model: ModelConfig, times: StepTimeModel) -> BatchLimit | None:
    """The setting that forbids a batch of this size; None if none does."""
    if step_ms(size, engine, times) > engine.target_step_ms:
        return "target_step_ms"
    if engine.num_kv_pages is not None and _kv_pages(size, engine, model) > engine.num_kv_pages:
        return "num_kv_pages"
    lora_pages = round(engine.target_distinct * size) * pages_of_rank(engine.expected_lora_rank)
    if engine.num_lora_pages is not None and lora_pages > engine.num_lora_pages:
        return "num_lora_pages"
    return None


def _kv_pages(size: int, engine: EngineConfig, model: ModelConfig) -> int:
    """Pages that so many requests hold; behind windows they give pages back."""
    rule = PageRule.of(engine.page_size, kv_window_of(engine, model))
    return size * rule.to_start(engine.target_context)
