"""The layout of LoRA weights in pages, for adapters, scheduler and engine.

A page holds LORA_PAGE_RANKS rank rows of one group of projections, all layers. An adapter takes ceil(r / 8) pages in
each group it touches, where r is its highest rank there.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from punica_serve.protocol import LoraGroup

#: Rank rows in a page.
LORA_PAGE_RANKS = 8

#: The highest rank that is served: 32 pages of a group.
MAX_LORA_RANK = 256
#: The highest rank of most steps. Those with a higher one have tables and kernels of their own, so that others pay
#: nothing for it.
USUAL_LORA_RANK = 128
#: One of so many pages of a pool are for the embedding, and for the head.
_VOCABULARY_SHARE = 8


class LoraKind(IntEnum):
    """How much LoRA a step, or a request, needs. A step's is the highest of its requests'."""

    NONE = 0
    #: Ranks to USUAL_LORA_RANK.
    USUAL = 1
    #: All that is served.
    WIDE = 2

    @classmethod
    def of(cls, ranks: Mapping[str, int] | None) -> "LoraKind":
        """The kind of a request whose adapter has these ranks by module; None is no adapter."""
        if ranks is None:
            return cls.NONE
        is_wide = max(ranks.values(), default=0) > USUAL_LORA_RANK or updates_vocabulary(ranks)
        return cls.WIDE if is_wide else cls.USUAL

    @property
    def max_rank(self) -> int:
        """The highest rank for which a step of this kind has room."""
        return {LoraKind.NONE: 0, LoraKind.USUAL: USUAL_LORA_RANK, LoraKind.WIDE: MAX_LORA_RANK}[self]


#: The projections of a layer that read the same input, in the order in which they are stacked.
LORA_GROUPS: dict[LoraGroup, tuple[str, ...]] = {
    "qkv": ("q_proj", "k_proj", "v_proj"),
    "o": ("o_proj",),
    "gate_up": ("gate_proj", "up_proj"),
    "down": ("down_proj",),
}

#: The same in models that compute a group by one projection, as Phi-3: one A serves all of its outputs.
FUSED_GROUPS: dict[LoraGroup, tuple[str, ...]] = {**LORA_GROUPS, "qkv": ("qkv_proj",), "gate_up": ("gate_up_proj",)}

#: The modules beside the layers.
VOCABULARY_GROUPS: dict[LoraGroup, tuple[str, ...]] = {"embed": ("embed_tokens",), "head": ("lm_head",)}

#: Every name that a projection of a group has in any model.
_NAMES = {
    **{group: (*modules, *FUSED_GROUPS[group]) for group, modules in LORA_GROUPS.items()},
    **VOCABULARY_GROUPS,
}


def pages_needed(ranks: Mapping[str, int]) -> dict[LoraGroup, int]:
    """Pages of each group that an adapter takes, from its highest rank per module. Groups without LoRA are left out."""
    pages: dict[LoraGroup, int] = {}
    for group, modules in _NAMES.items():
        rank = max(ranks.get(module, 0) for module in modules)
        if rank:
            pages[group] = pages_of_rank(rank)
    return pages


def updates_vocabulary(ranks: Mapping[str, int]) -> bool:
    """Whether an adapter with these ranks updates the embedding or the head."""
    return any(module in ranks for modules in VOCABULARY_GROUPS.values() for module in modules)


@dataclass(frozen=True, slots=True)
class LoraLimits:
    """The adapters that an engine is made for: it has pages, kernels and CUDA graphs for these alone."""

    #: `engine.max_lora_rank`
    max_rank: int = USUAL_LORA_RANK
    #: `engine.lora_vocabulary`
    vocabulary: bool = False

    @property
    def kinds(self) -> tuple[LoraKind, ...]:
        """The kinds of steps that can happen, the least first."""
        is_wide = self.max_rank > USUAL_LORA_RANK or self.vocabulary
        return tuple(LoraKind) if is_wide else (LoraKind.NONE, LoraKind.USUAL)

    def rank_pages(self, kind: LoraKind) -> int:
        """Most pages of one adapter in one group, in steps of this kind."""
        return pages_of_rank(min(self.max_rank, kind.max_rank))

    def why_not(self, ranks: Mapping[str, int]) -> str | None:
        """Why an adapter with these ranks by module is not served, and what to do; None if it is."""
        module, rank = max(ranks.items(), key=lambda item: item[1], default=("", 0))
        if rank > self.max_rank:
            fits = rank <= MAX_LORA_RANK
            fix = (
                f"raise `engine.max_lora_rank` to {rank}" if fits else f"{MAX_LORA_RANK} is the most: train a lower one"
            )
            return f"the adapter has rank {rank} in {module}, and `engine.max_lora_rank` is {self.max_rank}; {fix}"
        if not self.vocabulary and updates_vocabulary(ranks):
            named = " and ".join(name for names in VOCABULARY_GROUPS.values() for name in names if name in ranks)
            return f"the adapter updates {named}, and `engine.lora_vocabulary` is false; set it to true"
        return None


#: Those of an engine whose config says nothing of them.
USUAL_LIMITS = LoraLimits()


def pool_pages(num_lora_pages: int, limits: LoraLimits) -> dict[LoraGroup, int]:
    """The pages of each group in a pool that has any. Few adapters update the embedding or the head, whose pages are
    large; there is room for one of the highest rank in each of these too, if there is in a layer's groups.
    """
    if not limits.vocabulary:
        return dict.fromkeys(LORA_GROUPS, num_lora_pages)
    few = min(num_lora_pages, max(pages_of_rank(limits.max_rank), num_lora_pages // _VOCABULARY_SHARE))
    return {**dict.fromkeys(LORA_GROUPS, num_lora_pages), **dict.fromkeys(VOCABULARY_GROUPS, few)}


def pages_of_rank(rank: int) -> int:
    """Pages of one group that ``rank`` rank rows take."""
    return -(-rank // LORA_PAGE_RANKS)
