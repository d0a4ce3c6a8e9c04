"""The shape of a base model, from config.json and generation_config.json of a Hugging Face folder. Free of torch.

``read_model_config(folder)`` accepts the Llama architecture and refuses, with a ModelRejected that names the field,
whatever the engine does not implement: a model is served as it was trained or not at all.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from punica_serve.errors import ModelRejected


@dataclass(frozen=True, slots=True)
class Llama3RopeScaling:
    """Frequency-dependent scaling of rotary embeddings, as Llama 3.1 and later use it."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """What generation_config.json asks for where a request does not say."""

    eos_token_ids: tuple[int, ...] = ()
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A Llama model's hyperparameters, in Hugging Face's names."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: Llama3RopeScaling | None
    #: All frequencies divided by this: "linear" scaling; 1 without.
    rope_linear_factor: float
    tie_word_embeddings: bool
    bos_token_id: int | None
    #: The folder's name or `_name_or_path`: compared with an adapter's base_model_name_or_path.
    name: str
    generation: GenerationDefaults = field(default_factory=GenerationDefaults)

    @property
    def linear_shapes(self) -> dict[str, tuple[int, int]]:
        """(out_features, in_features) of the seven linear modules of a layer."""
        query, key_value = self.num_attention_heads * self.head_dim, self.num_key_value_heads * self.head_dim
        return {
            "q_proj": (query, self.hidden_size),
            "k_proj": (key_value, self.hidden_size),
            "v_proj": (key_value, self.hidden_size),
            "o_proj": (self.hidden_size, query),
            "gate_proj": (self.intermediate_size, self.hidden_size),
            "up_proj": (self.intermediate_size, self.hidden_size),
            "down_proj": (self.hidden_size, self.intermediate_size),
        }


def read_model_config(folder: Path) -> ModelConfig:
    """Reads a model folder's configuration. Raises ModelRejected."""
    if not folder.is_dir():
        raise ModelRejected(f"model folder {folder} does not exist; set `engine.model` to a Hugging Face folder")
    raw = _read_json(folder / "config.json")
    _refuse_unimplemented(raw, folder)
    heads = _positive_int(raw, "num_attention_heads", folder)
    hidden = _positive_int(raw, "hidden_size", folder)
    linear_factor, llama3 = _rope_scaling(raw, folder)
    config = ModelConfig(
        vocab_size=_positive_int(raw, "vocab_size", folder),
        hidden_size=hidden,
        intermediate_size=_positive_int(raw, "intermediate_size", folder),
        num_hidden_layers=_positive_int(raw, "num_hidden_layers", folder),
        num_attention_heads=heads,
        num_key_value_heads=_positive_int(raw, "num_key_value_heads", folder, default=heads),
        head_dim=_positive_int(raw, "head_dim", folder, default=hidden // heads),
        max_position_embeddings=_positive_int(raw, "max_position_embeddings", folder),
        rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        rope_theta=float(_rope_parameters(raw).get("rope_theta", raw.get("rope_theta", 10000.0))),
        rope_scaling=llama3,
        rope_linear_factor=linear_factor,
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
        bos_token_id=raw.get("bos_token_id"),
        name=str(raw.get("_name_or_path") or folder.name),
        generation=_generation_defaults(raw, folder),
    )
    if config.num_attention_heads % config.num_key_value_heads:
        raise _rejected(folder, "num_key_value_heads", "must divide num_attention_heads")
    return config


def _read_json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelRejected(f"{path} can't be read: {error.strerror}", param=path.name) from error
    except ValueError as error:
        raise ModelRejected(f"{path} is not JSON: {error}", param=path.name) from error
    if not isinstance(document, dict):
        raise ModelRejected(f"{path} must hold a JSON object", param=path.name)
    return document


def _rejected(folder: Path, name: str, reason: str) -> ModelRejected:
    return ModelRejected(f"{folder / 'config.json'}: `{name}` {reason}", param=name)


def _positive_int(raw: dict[str, Any], name: str, folder: Path, default: int | None = None) -> int:
    value = raw.get(name)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise _rejected(folder, name, f"must be a positive integer, got {value!r}")
    return value


def _refuse_unimplemented(raw: dict[str, Any], folder: Path) -> None:
    """The engine implements Llama; a field that asks for more must not be ignored."""
    if raw.get("model_type") != "llama":
        raise _rejected(folder, "model_type", f"is {raw.get('model_type')!r}; only 'llama' is implemented")
    for name, only in (("hidden_act", "silu"), ("attention_bias", False), ("mlp_bias", False)):
        if raw.get(name, only) != only:
            raise _rejected(folder, name, f"is {raw[name]!r}; only {only!r} is implemented")
    if raw.get("quantization_config"):
        raise _rejected(folder, "quantization_config", "is set; quantized weights are not implemented")


def _rope_parameters(raw: dict[str, Any]) -> dict[str, Any]:
    """Older files say rope_scaling (and rope_theta beside it), newer ones rope_parameters."""
    return raw.get("rope_parameters") or raw.get("rope_scaling") or {}


def _rope_scaling(raw: dict[str, Any], folder: Path) -> tuple[float, Llama3RopeScaling | None]:
    scaling = _rope_parameters(raw)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    try:
        if kind == "default":
            return 1.0, None
        if kind == "linear":
            return float(scaling["factor"]), None
        if kind == "llama3":
            return 1.0, Llama3RopeScaling(
                factor=float(scaling["factor"]),
                low_freq_factor=float(scaling["low_freq_factor"]),
                high_freq_factor=float(scaling["high_freq_factor"]),
                original_max_position_embeddings=int(scaling["original_max_position_embeddings"]),
            )
    except (KeyError, TypeError, ValueError) as error:
        raise _rejected(folder, "rope_scaling", f"of type {kind!r} lacks or has a wrong value: {error}") from error
    raise _rejected(folder, "rope_scaling", f"has type {kind!r}; 'default', 'linear' and 'llama3' are implemented")


def _generation_defaults(raw: dict[str, Any], folder: Path) -> GenerationDefaults:
    path = folder / "generation_config.json"
    generation = _read_json(path) if path.exists() else {}
    eos = generation.get("eos_token_id", raw.get("eos_token_id"))
    eos_token_ids = () if eos is None else tuple(eos) if isinstance(eos, list) else (eos,)
    if not generation.get("do_sample", False):
        return GenerationDefaults(eos_token_ids, repetition_penalty=_number(generation, "repetition_penalty", 1.0))
    return GenerationDefaults(
        eos_token_ids=eos_token_ids,
        temperature=_number(generation, "temperature", 1.0),
        top_p=_number(generation, "top_p", 1.0),
        # Transformers samples from the 50 most likely tokens unless the file says otherwise; a server that lets its
        # users choose starts from all of them.
        top_k=int(_number(generation, "top_k", 0)),
        min_p=_number(generation, "min_p", 0.0),
        repetition_penalty=_number(generation, "repetition_penalty", 1.0),
    )


def _number(raw: dict[str, Any], name: str, default: float) -> float:
    value = raw.get(name)
    return default if value is None else float(value)
