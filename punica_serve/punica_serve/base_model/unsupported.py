"""The parts that models have and the engine lacks, by the names of families and by the fields of their configs."""

from collections.abc import Container, Mapping
from typing import Any, NamedTuple

#: What programs that quantize weights call the field that says how.
QUANTIZATION_FIELDS = ("quantization_config", "compression_config", "quantization")


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

#: Fields of other decoders that change what they compute and leave no trace among the weights' names and shapes. Each
#: is off where it is null, false, 0 or empty.
_SWITCHES = (
    # attention and positions
    *("use_bidirectional_attention", "dual_chunk_attention_config", "sparse_attention_config", "clip_qkv", "alibi"),
    *("no_rope_layers", "no_rope_layer_interval", "layer_rope_theta", "rope_interleave", "attn_temperature_tuning"),
    *("use_qk_norm", "qk_layernorm", "query_pre_attn_scalar", "attn_logit_softcapping", "attention_value_scale"),
    *("use_attention_gate", "attn_output_gate", "num_kv_shared_layers", "num_attention_heads_per_layer"),
    # blocks, embedding and head
    *("parallel_attn", "use_parallel_residual", "use_post_norm", "use_sandwich_norm", "swiglu_limit", "swiglu_alpha"),
    *("final_logit_softcapping", "logits_soft_cap", "mup_enabled", "scale_embedding", "dim_model_base"),
    *("hidden_size_per_layer_input", "hc_mult", "is_encoder_decoder", "add_cross_attention"),
    *(name for part in _PARTS for name in part.fields),
)
#: Factors of other decoders; 1 is off, too.
_FACTORS = (
    *("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling", "lm_head_multiplier"),
    *("key_multiplier", "attention_in_multiplier", "attention_out_multiplier", "logits_mup_width_multiplier"),
    *("logit_scale", "embedding_scale", "scale_emb", "scale_depth"),
)


def foreign_field(raw: Mapping[str, Any], own: Container[str]) -> str | None:
    """A field of a config.json by which only other models compute; None if there is none.

    ``own``: fields by which this one does.
    """
    for name in (*_SWITCHES, *_FACTORS):
        if name not in own and raw.get(name) and not (name in _FACTORS and raw[name] == 1):
            return name
    return None


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
