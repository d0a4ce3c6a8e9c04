"""Whether an engine serves an adapter: it keeps the limits, and fits the LoRA pool when it is alone there."""

from collections.abc import Mapping

from punica_serve.base_model.lora_layout import LoraLimits, pages_needed, pages_of_rank, pool_pages
from punica_serve.config.dummy_adapters_section import DummyAdaptersConfig
from punica_serve.errors import AdapterRejected, ConfigError
from punica_serve.protocol import AdapterRef


def check_limits(ranks: Mapping[str, int], limits: LoraLimits) -> None:
    """``ranks`` is by module. Raises AdapterRejected."""
    if reason := limits.why_not(ranks):
        is_rank = max(ranks.values()) > limits.max_rank
        raise AdapterRejected(reason, param="r" if is_rank else "target_modules")


def check_fits_pool(ref: AdapterRef, num_lora_pages: int, limits: LoraLimits) -> None:
    """``num_lora_pages`` is per group of a layer's projections. Raises AdapterRejected."""
    check_limits(ref.ranks, limits)
    pool = pool_pages(num_lora_pages, limits)
    for group, num_pages in pages_needed(ref.ranks).items():
        if num_pages > pool[group]:
            raise AdapterRejected(
                f"the adapter takes {num_pages} pages of {group}, but the LoRA pool has {pool[group]}; use an adapter"
                f" of lower rank, or raise `engine.num_lora_pages` to {num_pages} or more",
                param="r",
            )


def check_dummies_fit_pool(dummies: DummyAdaptersConfig, num_lora_pages: int, limits: LoraLimits) -> None:
    """Raises ConfigError if a dummy adapter has too high a rank, or would not fit the LoRA pool."""
    rank = max(dummies.rank)
    if dummies.count and rank > limits.max_rank:
        raise ConfigError(
            f"`dummy_adapters.rank`: {rank} is more than `engine.max_lora_rank`, {limits.max_rank}; lower it, or raise"
            f" `engine.max_lora_rank` to {rank}",
            param="dummy_adapters.rank",
        )
    num_pages = pages_of_rank(rank)
    if dummies.count and num_pages > num_lora_pages:
        raise ConfigError(
            f"`dummy_adapters.rank`: adapters of rank {rank} take {num_pages} pages each, but the LoRA pool has"
            f" {num_lora_pages}; lower it, or raise `engine.num_lora_pages` to {num_pages} or more",
            param="dummy_adapters.rank",
        )
