"""Whether an adapter could be on a GPU at all, alone in the LoRA pool."""

from punica_serve.errors import AdapterRejected
from punica_serve.lora_layout import pages_needed
from punica_serve.protocol import AdapterRef


def check_fits_pool(ref: AdapterRef, num_lora_pages: int) -> None:
    """``num_lora_pages`` are those of each group of projections. Raises AdapterRejected."""
    group, num_pages = max(pages_needed(ref.ranks).items(), key=lambda item: item[1])
    if num_pages > num_lora_pages:
        raise AdapterRejected(
            f"the adapter takes {num_pages} pages of {group}, and the LoRA pool has {num_lora_pages}; use an adapter of"
            f" lower rank or raise `engine.num_lora_pages` to {num_pages} or more",
            param="r",
        )
