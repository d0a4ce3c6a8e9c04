"""The bytes of a model on a device, or of a rank's share of it, from its shape alone. Free of torch."""

from dataclasses import dataclass

from punica_serve.base_model.lora_layout import LORA_PAGE_RANKS, pool_pages
from punica_serve.base_model.model_config import ModelConfig

_FLOAT32_BYTES = 4


@dataclass(frozen=True, slots=True)
class ShareBytes:
    """Bytes on the device of one rank."""

    weights: int
    #: Of the LoRA pool, what every rank has whole: A where outputs are divided, B where inputs are.
    lora_whole: int
    #: What ranks divide: B where outputs are divided, A where inputs are.
    lora_divided: int
    #: Of one token's keys and values.
    kv_token: int

    @classmethod
    def of(cls, model: ModelConfig, itemsize: int, num_lora_pages: int) -> "ShareBytes":
        """Those of a rank's share, or of a whole model. ``itemsize``: bytes of a weight."""
        whole = divided = 0
        for group in model.spec.lora_groups:
            # Each slice of a group has an A of its own.
            a, b = len(group.projections) * group.in_features, group.out_features
            rows = pool_pages(num_lora_pages)[group.name] * LORA_PAGE_RANKS * model.spec.layers_of(group.name)
            whole += rows * itemsize * (b if group.row_parallel else a)
            divided += rows * itemsize * (a if group.row_parallel else b)
        kv_token = model.num_hidden_layers * 2 * model.num_key_value_heads * model.head_dim * itemsize
        return cls(_weights(model, itemsize), whole, divided, kv_token)


def _weights(model: ModelConfig, itemsize: int) -> int:
    spec = model.spec
    norm_bytes = _FLOAT32_BYTES if spec.norm_offset else itemsize
    linear = sum(group.out_features * (group.in_features + group.bias) for group in spec.groups)
    norms = model.num_hidden_layers * sum(norm.size for norm in spec.layer_norms) + model.hidden_size
    tables = (1 if model.tie_word_embeddings else 2) * len(model.vocabulary) * model.hidden_size
    return (model.num_hidden_layers * linear + tables) * itemsize + norms * norm_bytes
