"""Whether an adapter fits the LoRA pool when it is alone there."""

from punica_serve.base_model.lora_layout import pages_needed, pages_of_rank
from punica_serve.config.cluster import DummyAdaptersConfig
from punica_serve.errors import AdapterRejected, ConfigError
from punica_serve.protocol import AdapterRef


def check_fits_pool(ref: AdapterRef, num_lora_pages: int) -> None:
    """``num_lora_pages`` is per group of projections. Raises AdapterRejected."""
    group, num_pages = max(pages_needed(ref.ranks).items(), key=lambda item: item[1])
    if num_pages > num_lora_pages:
        raise AdapterRejected(
            f"the adapter takes {num_pages} pages of {group}, but the LoRA pool has {num_lora_pages}; use an adapter of"
            f" lower rank, or raise `engine.num_lora_pages` to {num_pages} or more",
            param="r",
        )


def check_dummies_fit_pool(dummies: DummyAdaptersConfig, num_lora_pages: int) -> None:
    """Raises ConfigError if a dummy adapter would not fit the LoRA pool."""
    rank = max(dummies.rank)
    num_pages = pages_of_rank(rank)
    if dummies.count and num_pages > num_lora_pages:
        raise ConfigError(
            f"`dummy_adapters.rank`: adapters of rank {rank} take {num_pages} pages each, but the LoRA pool has"
            f" {num_lora_pages}; lower it, or raise `engine.num_lora_pages` to {num_pages} or more",
            param="dummy_adapters.rank",
        )
