"""The layout of LoRA weights in pages, for adapters, scheduler and engine.

A page holds LORA_PAGE_RANKS rank rows of one group of projections, all layers. An adapter takes ceil(r / 8) pages in
each group it touches, where r is its highest rank there.
"""

from collections.abc import Mapping

from punica_serve.protocol import LoraGroup

#: Rank rows in a page.
LORA_PAGE_RANKS = 8

#: The highest rank that is served: 16 pages of a group. It bounds the state that kernels keep for one row.
MAX_LORA_RANK = 128

#: The projections that read the same input, in the order in which they are stacked.
LORA_GROUPS: dict[LoraGroup, tuple[str, ...]] = {
    "qkv": ("q_proj", "k_proj", "v_proj"),
    "o": ("o_proj",),
    "gate_up": ("gate_proj", "up_proj"),
    "down": ("down_proj",),
}

#: The same in models that compute a group by one projection, as Phi-3: one A serves all of its outputs.
FUSED_GROUPS: dict[LoraGroup, tuple[str, ...]] = {**LORA_GROUPS, "qkv": ("qkv_proj",), "gate_up": ("gate_up_proj",)}

#: Every name that a projection of a group has in any model.
_NAMES = {group: (*modules, *FUSED_GROUPS[group]) for group, modules in LORA_GROUPS.items()}


def pages_needed(ranks: Mapping[str, int]) -> dict[LoraGroup, int]:
    """Pages of each group that an adapter takes, from its highest rank per module. Groups without LoRA are left out."""
    pages: dict[LoraGroup, int] = {}
    for group, modules in _NAMES.items():
        rank = max(ranks.get(module, 0) for module in modules)
        if rank:
            pages[group] = pages_of_rank(rank)
    return pages


def pages_of_rank(rank: int) -> int:
    """Pages of one group that ``rank`` rank rows take."""
    return -(-rank // LORA_PAGE_RANKS)
