"""The memory that a model and its adapters take on a GPU, from their shapes alone. Free of torch."""

from bisect import bisect_right
from dataclasses import dataclass

from punica_serve.base_model.lora_layout import (
    LORA_PAGE_RANKS,
    VOCABULARY_GROUPS,
    LoraLimits,
    pages_of_rank,
    pool_pages,
)
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.base_model.model_spec import page_elements

#: `auto` makes room for adapters of this rank, or of the highest that is known.
USUAL_RANK = 16
#: `auto` keeps so many times the adapters of the GPU in host memory.
HOST_TIMES = 4
#: `auto` leaves three quarters of what a GPU has beside the weights to the KvCache.
_LORA_SHARE = 4


def num_weights(model: ModelConfig) -> int:
    """Parameters of a model, or of a rank's share."""
    spec, vocabulary = model.spec, len(model.vocabulary) * model.hidden_size
    norms = sum(norm.size for norm in spec.layer_norms)
    linears = sum(group.out_features * (group.in_features + group.bias) for group in spec.groups)
    layers = spec.num_layers * (linears + norms)
    return layers + model.hidden_size + vocabulary * (1 if model.tie_word_embeddings else 2)


def kv_bytes_per_token(model: ModelConfig, num_value_bytes: int) -> int:
    """Bytes of the KvCache for one token, all layers together."""
    return 2 * model.num_hidden_layers * model.num_key_value_heads * model.head_dim * num_value_bytes


def pool_num_bytes(model: ModelConfig, num_lora_pages: int, num_value_bytes: int, limits: LoraLimits) -> int:
    """Bytes of a LoRA pool."""
    pages = pool_pages(num_lora_pages, limits)
    elements = sum(pages.get(group.name, 0) * page_elements(model.spec, group) for group in model.spec.lora_groups)
    return elements * num_value_bytes


def undivided_pool_bytes(model: ModelConfig, num_lora_pages: int, num_value_bytes: int, limits: LoraLimits) -> int:
    """Bytes of a LoRA pool that every rank of a group has whole: A where outputs are divided, B where inputs are."""
    pages, total = pool_pages(num_lora_pages, limits), 0
    for group in model.spec.lora_groups:
        if group.divided_a is not None:
            continue
        width = group.out_features if group.row_parallel else len(group.projections) * group.in_features
        total += pages.get(group.name, 0) * LORA_PAGE_RANKS * model.spec.layers_of(group.name) * width
    return total * num_value_bytes


def adapter_num_bytes(model: ModelConfig, rank: int, num_value_bytes: int) -> int:
    """Bytes of an adapter of this rank on all linear modules of the layers, as it is packed."""
    groups = (group for group in model.spec.lora_groups if group.name not in VOCABULARY_GROUPS)
    return pages_of_rank(rank) * sum(page_elements(model.spec, group) for group in groups) * num_value_bytes


def auto_host_bytes(model: ModelConfig, max_batch_size: int, rank: int, num_value_bytes: int) -> int:
    """Host memory for `HOST_TIMES` as many adapters of this rank as a step has requests."""
    return HOST_TIMES * max_batch_size * adapter_num_bytes(model, rank, num_value_bytes)


def auto_lora_pages(max_batch_size: int, rank: int, limits: LoraLimits) -> int:
    """Pages for a step of adapters of this rank, one for each request, and for one of the highest rank at least."""
    return max(pages_of_rank(limits.max_rank), max_batch_size * pages_of_rank(rank))


def lora_pages_within(model: ModelConfig, wanted: int, num_bytes: int, num_value_bytes: int, limits: LoraLimits) -> int:
    """The pages that `auto` takes of a GPU with so many bytes beside the weights, for one adapter at least."""
    fits = most_lora_pages(model, wanted, num_bytes // _LORA_SHARE, num_value_bytes, limits)
    return max(pages_of_rank(limits.max_rank), fits)


def most_lora_pages(model: ModelConfig, wanted: int, num_bytes: int, num_value_bytes: int, limits: LoraLimits) -> int:
    """The pages, up to ``wanted``, of the largest LoRA pool with so many bytes; 0: none."""
    return bisect_right(
        range(1, wanted + 1),
        num_bytes,
        key=lambda num_pages: pool_num_bytes(model, num_pages, num_value_bytes, limits),
    )


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """How a GPU's memory would be divided."""

    weight_bytes: int
    num_lora_pages: int
    lora_bytes: int
    #: May be negative: then the model does not fit.
    kv_bytes: int
    kv_tokens: int

    @classmethod
    def of(
        cls,
        model: ModelConfig,
        *,
        num_gpu_bytes: int,
        share: float,
        num_value_bytes: int,
        num_lora_pages: int | None,
        max_batch_size: int,
        rank: int,
        limits: LoraLimits,
    ) -> "MemoryPlan":
        """``share``: of the GPU's memory, for all three. ``num_lora_pages``: None is `auto`."""
        weight_bytes = num_weights(model) * num_value_bytes
        left = int(share * num_gpu_bytes) - weight_bytes
        wanted = auto_lora_pages(max_batch_size, rank, limits)
        pages = num_lora_pages or lora_pages_within(model, wanted, max(0, left), num_value_bytes, limits)
        lora_bytes = pool_num_bytes(model, pages, num_value_bytes, limits)
        kv_bytes = left - lora_bytes
        tokens = max(0, kv_bytes) // kv_bytes_per_token(model, num_value_bytes)
        return cls(weight_bytes, pages, lora_bytes, kv_bytes, tokens)
