"""Whether pools and steps of a batch fit GPUs of a known size, for `engine.max_batch_size: auto`. Free of torch."""

from punica_serve.base_model.config_json import read_model_config
from punica_serve.base_model.lora_layout import pages_of_rank
from punica_serve.base_model.rank import Rank
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.memory.step_memory import plan_memory, room_for_steps, step_bytes
from punica_serve.paging.kv_window import kv_window_of
from punica_serve.paging.page_rule import PageRule
from punica_serve.performance.auto_batch import AUTO_SIZES


def largest_within(config: EngineConfig, group_size: int, num_gpu_bytes: int) -> int:
    """The largest of `auto`'s sizes up to the config's `max_batch_size` that fits; the smallest if none does."""
    sizes = [size for size in AUTO_SIZES if size <= config.max_batch_size]
    return max((size for size in sizes if batch_fits(size, config, group_size, num_gpu_bytes)), default=sizes[0])


def batch_fits(size: int, config: EngineConfig, group_size: int, num_gpu_bytes: int) -> bool:
    """Whether GPUs with so much memory hold a batch of requests of `target_context` tokens, of which the share
    `target_distinct` have adapters of their own, and its steps.
    """
    model = read_model_config(config.model)
    share = config.share_of(model, Rank(0, group_size))
    config = config.model_copy(update={"max_batch_size": size})
    plan = plan_memory(config, share, num_gpu_bytes)
    lora_pages = round(config.target_distinct * size) * pages_of_rank(config.expected_lora_rank)
    rule = PageRule.of(config.page_size, kv_window_of(config, model))
    kv_pages = size * rule.held_by(config.target_context)
    return (
        plan.kv_tokens // config.page_size >= kv_pages
        and plan.num_lora_pages >= lora_pages
        and room_for_steps(config, share, plan, num_gpu_bytes) >= step_bytes(config, share)
    )
