"""The parts that models have and the engine lacks, by the names of families and by the fields of their configs."""

from collections.abc import Mapping
from typing import Any, NamedTuple


class _Part(NamedTuple):
    name: str
    families: tuple[str, ...]
    #: Fields that only such models set.
    fields: tuple[str, ...]
    #: The one in `layer_types` that only such models have.
    layer_type: str | None = None


_PARTS = (
    _Part(
        "a mixture of experts",
        ("mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss", "deepseek_v2", "deepseek_v3", "llama4", "dbrx"),
        ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
    ),
    _Part(
        "a hybrid with linear attention",
        ("qwen3_next", "qwen3_5", "qwen3_5_moe", "falcon_h1", "jamba", "bamba", "recurrent_gemma"),
        ("linear_num_key_heads", "linear_attn_config", "mamba_d_state", "mamba_d_ssm", "mamba_num_heads"),
        "linear_attention",
    ),
)


def lacking_part(raw: Mapping[str, Any]) -> str | None:
    """The part of the model of a config.json, or of its `text_config`, that makes it unlike any that is served."""
    text = raw.get("text_config")
    fields = {**raw, **text} if isinstance(text, dict) else raw
    return " and ".join(part.name for part in _PARTS if _has(part, raw.get("model_type"), fields)) or None


def _has(part: _Part, family: Any, fields: Mapping[str, Any]) -> bool:
    layer_types = fields.get("layer_types")
    return (
        family in part.families
        or any(fields.get(name) for name in part.fields)
        or (isinstance(layer_types, list) and part.layer_type in layer_types)
    )
