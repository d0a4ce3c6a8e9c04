"""The parts that models have and the engine lacks, by the names of families and by the fields of their configs."""

from collections.abc import Mapping
from typing import Any, NamedTuple


class _Part(NamedTuple):
    name: str
    families: tuple[str, ...]
    #: Fields that only such models set.
    fields: tuple[str, ...]


_PARTS = (
    _Part(
        "a mixture of experts",
        ("mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss", "deepseek_v2", "deepseek_v3", "llama4"),
        ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
    ),
    _Part(
        "a hybrid with linear attention",
        ("qwen3_next", "qwen3_5", "qwen3_5_moe", "falcon_h1", "jamba", "bamba"),
        ("linear_num_key_heads", "mamba_d_state", "mamba_d_ssm", "mamba_num_heads"),
    ),
)


def lacking_part(raw: Mapping[str, Any]) -> str | None:
    """The part of the model of a config.json, or of its `text_config`, that makes it unlike any that is served."""
    text = raw.get("text_config")
    fields = {**raw, **text} if isinstance(text, dict) else raw
    found = (
        part.name
        for part in _PARTS
        if raw.get("model_type") in part.families or any(fields.get(name) for name in part.fields)
    )
    return " and ".join(found) or None
