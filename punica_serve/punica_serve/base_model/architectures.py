"""The architectures that are served, by the `model_type` of a config.json. Free of torch.

All of them are Llama's decoder with other values, so one table says what they are; ``models/llama.py`` runs them all. A
field that would change the arithmetic and is not implemented is refused by its name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from punica_serve.base_model.model_files import refusal

#: Fields by which transformers computes any of these otherwise -> values that the engine implements, the usual first.
_COMMON: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", "swish"),
    "attention_chunk_size": (None,),
    "is_causal": (True, None),
    "per_layer_config": (None, {}),
}
_FULL = "'full_attention'"


@dataclass(frozen=True, slots=True)
class Architecture:
    """One decoder, as transformers builds it from its own config class."""

    #: The causal language model's name in `architectures`.
    class_name: str
    #: Values of fields that a config.json leaves out, where they differ from Llama's.
    defaults: Mapping[str, Any] = field(default_factory=dict)
    #: Fields that it reads beyond the common ones -> values that the engine implements, the usual first.
    implemented: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    #: Whether `sliding_window` is read. Where it is, windows as long as the context hide nothing and are served.
    has_windows: bool = True
    #: Whether q, k and v have a bias.
    qkv_bias: bool = False
    #: Whether each head of queries and keys is normed before it is rotated.
    qk_norm: bool = False


ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture("LlamaForCausalLM", implemented={"attention_bias": (False,), "mlp_bias": (False,)}),
    "mistral": Architecture("MistralForCausalLM", defaults={"num_key_value_heads": 8, "sliding_window": 4096}),
    "qwen2": Architecture(
        "Qwen2ForCausalLM",
        defaults={"num_key_value_heads": 32},
        implemented={"use_sliding_window": (False,)},
        has_windows=False,
        qkv_bias=True,
    ),
    "qwen3": Architecture(
        "Qwen3ForCausalLM",
        defaults={"num_key_value_heads": 32, "head_dim": 128},
        implemented={"use_sliding_window": (False,), "attention_bias": (False,)},
        has_windows=False,
        qk_norm=True,
    ),
}

#: Families that users ask for, and the part of them that the engine lacks.
_LACKING = {
    "a mixture of experts": ("mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss", "deepseek_v2", "deepseek_v3", "llama4"),
    "a hybrid with linear attention": ("qwen3_next", "qwen3_5", "qwen3_5_moe", "falcon_h1", "jamba", "bamba"),
}


def read_architecture(raw: Mapping[str, Any], path: Path) -> Architecture:
    """The architecture of the config.json at ``path``. Raises ModelRejected, which names the field."""
    name = raw.get("model_type")
    served = f"served are {', '.join(ARCHITECTURES)}"
    if not isinstance(name, str) or name not in ARCHITECTURES:
        kind = next((f", {kind}" for kind, names in _LACKING.items() if name in names), "")
        raise refusal(path, "model_type", f"is {name!r}{kind}, which is not implemented; {served}")
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
            raise refusal(path, name, f"is {raw[name]!r}; only {implemented[0]!r} is implemented")
    layer_types = raw.get("layer_types")
    if layer_types is not None and (not isinstance(layer_types, list) or set(map(repr, layer_types)) - {_FULL}):
        raise refusal(path, "layer_types", f"is {layer_types!r}; only {_FULL} is implemented")
    if architecture.has_windows:
        _refuse_window({**architecture.defaults, **raw}, path)


def _refuse_window(raw: Mapping[str, Any], path: Path) -> None:
    window, context = raw.get("sliding_window"), raw.get("max_position_embeddings")
    hides_nothing = type(window) is int and type(context) is int and window >= context
    if window is not None and not hides_nothing:
        reason = f"is {window!r}; only None, or max_position_embeddings and more, is implemented"
        raise refusal(path, "sliding_window", reason)
