"""The architectures that are served, by the `model_type` of a config.json. Free of torch.

All of them are Llama's decoder with other values, so one table says what they are; ``models/llama.py`` runs them all. A
field that would change the arithmetic and is not implemented is refused by its name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from punica_serve.base_model.model_files import refusal
from punica_serve.base_model.unsupported import QUANTIZATION_FIELDS, foreign_field, lacking_part
from punica_serve.base_model.windows import WindowRule

#: Fields by which transformers computes any of these otherwise -> values that the engine implements, the usual first.
_COMMON: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", "swish"),
    "attention_chunk_size": (None,),
    "is_causal": (True, None),
    "per_layer_config": (None, {}),
}
#: Fields of Gemma 2 and 3 that hold any number.
_SCORE_FIELDS = ("query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping")


@dataclass(frozen=True, slots=True)
class Architecture:
    """One decoder, as transformers builds it from its own config class."""

    #: The causal language model's name in `architectures`.
    class_name: str
    #: Values of fields that a config.json leaves out, where they differ from Llama's.
    defaults: Mapping[str, Any] = field(default_factory=dict)
    #: Fields that it reads beyond the common ones -> values that the engine implements, the usual first.
    implemented: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    #: The layers that have a window.
    windows: WindowRule = "none"
    #: The base of rotary frequencies in layers with a window, where it is another than in those without.
    window_rope_theta: float | None = None
    #: Whether q, k and v have a bias.
    qkv_bias: bool = False
    #: Whether each head of queries and keys is normed before it is rotated.
    qk_norm: bool = False
    #: Whether it is a Gemma: norms of 1 + w, scaled embeddings and GeGLU.
    is_gemma: bool = False
    #: Whether it also norms behind each block, scales scores by query_pre_attn_scalar and has soft caps: Gemma 2 and 3.
    norms_behind_blocks: bool = False
    #: Whether q, k and v, and gate and up, are one linear module each.
    has_fused_projections: bool = False
    #: Whether rotary embeddings are Phi-3's: partial, and scaled by LongRoPE, whatever the scaling is called.
    has_longrope: bool = False


#: Transformers reads the first name in Gemma 1, and the second alone in the others.
_GEMMA: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("gelu_pytorch_tanh", "gelu", None),
    "hidden_activation": ("gelu_pytorch_tanh",),
    "attention_bias": (False,),
    "use_bidirectional_attention": (False, None),
}

#: Transformers' defaults that Gemma 2 and 3 share.
_GEMMA_DEFAULTS: dict[str, Any] = {
    "num_key_value_heads": 4,
    "head_dim": 256,
    "tie_word_embeddings": True,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "eos_token_id": 1,
}

ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(
        "LlamaForCausalLM",
        defaults={"eos_token_id": 2},
        implemented={"attention_bias": (False,), "mlp_bias": (False,)},
    ),
    "mistral": Architecture(
        "MistralForCausalLM",
        defaults={"num_key_value_heads": 8, "sliding_window": 4096, "eos_token_id": 2},
        windows="all",
    ),
    "qwen2": Architecture(
        "Qwen2ForCausalLM",
        defaults={"num_key_value_heads": 32, "sliding_window": 4096},
        windows="qwen",
        qkv_bias=True,
    ),
    "qwen3": Architecture(
        "Qwen3ForCausalLM",
        defaults={"num_key_value_heads": 32, "head_dim": 128, "sliding_window": 4096},
        implemented={"attention_bias": (False,)},
        windows="qwen",
        qk_norm=True,
    ),
    "gemma": Architecture(
        "GemmaForCausalLM",
        defaults={"num_key_value_heads": 16, "head_dim": 256, "tie_word_embeddings": True, "eos_token_id": 1},
        implemented={
            **_GEMMA,
            "hidden_act": ("gelu_pytorch_tanh", "gelu"),
            "hidden_activation": ("gelu_pytorch_tanh", None),  # transformers ignores what older versions wrote
        },
        is_gemma=True,
    ),
    "gemma2": Architecture(
        "Gemma2ForCausalLM",
        defaults={
            **_GEMMA_DEFAULTS,
            "vocab_size": 256_000,
            "max_position_embeddings": 8192,
            "sliding_window_pattern": 2,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
        implemented={**_GEMMA, "sliding_window_pattern": (2,)},
        windows="gemma",
        is_gemma=True,
        norms_behind_blocks=True,
    ),
    "gemma3_text": Architecture(
        "Gemma3ForCausalLM",
        defaults={
            **_GEMMA_DEFAULTS,
            "vocab_size": 262_208,
            "max_position_embeddings": 131_072,
            "rope_theta": 1_000_000.0,
        },
        implemented={**_GEMMA, "attn_logit_softcapping": (None,)},  # transformers reads it and never applies it
        windows="gemma",
        window_rope_theta=10_000.0,
        qk_norm=True,
        is_gemma=True,
        norms_behind_blocks=True,
    ),
    "phi3": Architecture(
        "Phi3ForCausalLM",
        defaults={"rms_norm_eps": 1e-5, "max_position_embeddings": 4096, "eos_token_id": 32_000},
        implemented={"attention_bias": (False,)},
        windows="all",
        has_fused_projections=True,
        has_longrope=True,
    ),
}

#: Models that also see images, by `model_type` -> the `model_type` of their text model, and their class.
_WRAPPERS = {
    "gemma3": ("gemma3_text", "Gemma3ForConditionalGeneration"),
    "mistral3": ("mistral", "Mistral3ForConditionalGeneration"),
}
#: Advice: no setting makes such a model one that is served.
_ANOTHER = "; take another base model (`punica-serve config check FOLDER` tells)"
#: Fields of a wrapper that hold for its text model.
_SHARED_FIELDS = ("dtype", "torch_dtype", "eos_token_id", "_name_or_path", *QUANTIZATION_FIELDS)


def text_config(raw: dict[str, Any], path: Path) -> dict[str, Any]:
    """The config of the text model: ``raw`` itself, or its `text_config` if it is a model that also sees images.

    Raises ModelRejected, which names the field.
    """
    wrapper = raw.get("model_type")
    if not isinstance(wrapper, str) or wrapper not in _WRAPPERS:
        return raw
    model_type, class_name = _WRAPPERS[wrapper]
    text, classes = raw.get("text_config"), raw.get("architectures")
    if not isinstance(text, dict):
        raise refusal(path, "text_config", f"must be an object whose `model_type` is {model_type!r}")
    if (own_type := text.get("model_type", model_type)) != model_type:
        reason = f"is {own_type!r}; of {wrapper!r} only {model_type!r} is implemented{_ANOTHER}"
        raise refusal(path, "text_config.model_type", reason)
    if classes and (not isinstance(classes, list) or class_name not in classes):
        raise refusal(path, "architectures", f"is {classes!r}; of {wrapper!r} only {class_name!r} is implemented")
    shared = {name: raw[name] for name in _SHARED_FIELDS if raw.get(name) is not None}
    # The wrapper ties its text model's embeddings, whatever text_config says.
    tied = raw.get("tie_word_embeddings", text.get("tie_word_embeddings", True))
    own = {name: value for name, value in text.items() if name != "architectures"}
    return {**shared, **own, "model_type": model_type, "tie_word_embeddings": tied}


def class_names(architecture: Architecture) -> tuple[str, ...]:
    """Transformers' classes with these layers: the language model's, and those of models that also see images."""
    wrappers = (name for text, name in _WRAPPERS.values() if ARCHITECTURES[text] is architecture)
    return (architecture.class_name, *wrappers)


def read_architecture(raw: Mapping[str, Any], path: Path) -> Architecture:
    """The architecture of the config.json at ``path``. Raises ModelRejected, which names the field."""
    name = raw.get("model_type")
    served = f"served are {', '.join(ARCHITECTURES)}, and the text models of {', '.join(_WRAPPERS)}"
    if not isinstance(name, str) or name not in ARCHITECTURES:
        part = lacking_part(raw)
        raise refusal(
            path, "model_type", f"is {name!r}{f', {part}' if part else ''}, which is not implemented; {served}"
        )
    architecture = ARCHITECTURES[name]
    classes = raw.get("architectures")
    if classes and (not isinstance(classes, list) or architecture.class_name not in classes):
        reason = f"is {classes!r}; of {name!r} only {architecture.class_name!r}, which generates text, is implemented"
        raise refusal(path, "architectures", reason)
    _refuse_unimplemented(raw, architecture, path)
    return architecture


def _refuse_unimplemented(raw: Mapping[str, Any], architecture: Architecture, path: Path) -> None:
    for name, implemented in {**_COMMON, **architecture.implemented}.items():
        if name in raw and raw[name] not in implemented:
            raise refusal(path, name, f"is {raw[name]!r}; only {implemented[0]!r} is implemented{_ANOTHER}")
    own = {*architecture.implemented, *(_SCORE_FIELDS if architecture.norms_behind_blocks else ())}
    if foreign := foreign_field(raw, own):
        reason = f"is {raw[foreign]!r}, by which other models compute and {architecture.class_name} does not"
        raise refusal(path, foreign, f"{reason}{_ANOTHER}, or delete the field if the weights were trained without it")
