"""The shape of a base model, from config.json and generation_config.json of a Hugging Face folder. Free of torch.

``read_model_config(folder)`` accepts the Llama architecture and refuses, with a ModelRejected that names the field,
whatever the engine does not implement: a model is served as it was trained or not at all.
"""

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec

from punica_serve.errors import ModelRejected
from punica_serve.model_files import convert, read_object, refusal
from punica_serve.sampling_ranges import RANGES

_MODEL_FOLDER = "set `engine.model`, or LLM's `model`, to a folder on this machine in Hugging Face's format"

#: What weights are stored and computed in.
ModelDtype = Literal["float32", "float16", "bfloat16"]

_PositiveInt = Annotated[int, msgspec.Meta(ge=1)]
#: Finite.
_PositiveFloat = Annotated[float, msgspec.Meta(gt=0, le=sys.float_info.max)]
_TokenId = Annotated[int, msgspec.Meta(ge=0)]


@dataclass(frozen=True, slots=True)
class Llama3RopeScaling:
    """Frequency-dependent scaling of rotary embeddings, as Llama 3.1 and later use it."""

    factor: _PositiveFloat
    low_freq_factor: _PositiveFloat
    high_freq_factor: _PositiveFloat
    original_max_position_embeddings: _PositiveInt


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
    #: The folder's name or `_name_or_path`: compared with an adapter's base_model_name_or_path.
    name: str
    #: What the checkpoint was saved in.
    dtype: ModelDtype = "float32"
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


class _ConfigFile(msgspec.Struct, frozen=True):
    """What of a config.json is read. Names and defaults are those of transformers."""

    vocab_size: _PositiveInt
    hidden_size: _PositiveInt
    intermediate_size: _PositiveInt
    num_hidden_layers: _PositiveInt
    num_attention_heads: _PositiveInt
    max_position_embeddings: _PositiveInt
    #: None: as many as num_attention_heads.
    num_key_value_heads: _PositiveInt | None = None
    #: None: hidden_size / num_attention_heads.
    head_dim: _PositiveInt | None = None
    rms_norm_eps: _PositiveFloat = 1e-6
    rope_theta: _PositiveFloat = 10000.0
    rope_parameters: dict[str, Any] | None = None
    #: The older name of rope_parameters, without rope_theta.
    rope_scaling: dict[str, Any] | None = None
    tie_word_embeddings: bool = False
    dtype: ModelDtype | None = None
    #: The older name of dtype.
    torch_dtype: ModelDtype | None = None
    eos_token_id: _TokenId | tuple[_TokenId, ...] | None = None
    name_or_path: str | None = msgspec.field(default=None, name="_name_or_path")


class _GenerationFile(msgspec.Struct, frozen=True):
    """What of a generation_config.json is read; what is null counts as left out."""

    eos_token_id: _TokenId | tuple[_TokenId, ...] | None = None
    do_sample: bool = False
    temperature: float = 1.0
    top_p: float = 1.0
    #: Transformers samples from the 50 most likely tokens unless the file says otherwise; a server that lets its users
    #: choose starts from all of them.
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


class _RopeTheta(msgspec.Struct, frozen=True):
    rope_theta: _PositiveFloat


class _LinearRope(msgspec.Struct, frozen=True):
    factor: _PositiveFloat


@dataclass(frozen=True, slots=True)
class _Rope:
    theta: float
    linear_factor: float = 1.0
    llama3: Llama3RopeScaling | None = None


def read_model_config(folder: Path) -> ModelConfig:
    """Reads a model folder's configuration. Raises ModelRejected."""
    if not os.path.isdir(folder):
        raise ModelRejected(f"model folder {folder} does not exist; {_MODEL_FOLDER}")
    path = folder / "config.json"
    raw = read_object(path)
    _refuse_unimplemented(raw, path)
    file = convert(raw, _ConfigFile, path)
    _check_heads(file, path)
    rope = _read_rope(file, path)
    return ModelConfig(
        vocab_size=file.vocab_size,
        hidden_size=file.hidden_size,
        intermediate_size=file.intermediate_size,
        num_hidden_layers=file.num_hidden_layers,
        num_attention_heads=file.num_attention_heads,
        num_key_value_heads=file.num_key_value_heads or file.num_attention_heads,
        head_dim=file.head_dim or file.hidden_size // file.num_attention_heads,
        max_position_embeddings=file.max_position_embeddings,
        rms_norm_eps=file.rms_norm_eps,
        rope_theta=rope.theta,
        rope_scaling=rope.llama3,
        rope_linear_factor=rope.linear_factor,
        tie_word_embeddings=file.tie_word_embeddings,
        name=file.name_or_path or folder.name,
        dtype=file.dtype or file.torch_dtype or "float32",
        generation=_read_generation_defaults(file, path),
    )


def _refuse_unimplemented(raw: dict[str, Any], path: Path) -> None:
    """The engine implements Llama; a field that asks for more must not be ignored."""
    if raw.get("model_type") != "llama":
        raise refusal(path, "model_type", f"is {raw.get('model_type')!r}; only 'llama' is implemented")
    for name, only in (("hidden_act", "silu"), ("attention_bias", False), ("mlp_bias", False)):
        if raw.get(name, only) != only:
            raise refusal(path, name, f"is {raw[name]!r}; only {only!r} is implemented")
    for name in ("dtype", "torch_dtype"):
        if raw.get(name) not in (None, *get_args(ModelDtype)):
            raise refusal(path, name, f"is {raw[name]!r}; {', '.join(get_args(ModelDtype))} are implemented")
    if raw.get("quantization_config"):
        raise refusal(path, "quantization_config", "is set; quantized weights are not implemented")


def _check_heads(file: _ConfigFile, path: Path) -> None:
    if file.num_attention_heads % (file.num_key_value_heads or 1):
        raise refusal(path, "num_key_value_heads", "must divide num_attention_heads")
    if file.head_dim is None and file.hidden_size % file.num_attention_heads:
        raise refusal(path, "num_attention_heads", "must divide hidden_size, or head_dim be given")
    if (file.head_dim or file.hidden_size // file.num_attention_heads) % 2:
        raise refusal(path, "head_dim", "must be even: rotary embeddings turn pairs")


def _read_rope(file: _ConfigFile, path: Path) -> _Rope:
    name = "rope_parameters" if file.rope_parameters else "rope_scaling"
    raw = {"rope_theta": file.rope_theta, **(file.rope_parameters or file.rope_scaling or {})}
    theta = convert(raw, _RopeTheta, path, within=name).rope_theta
    kind = raw.get("rope_type", raw.get("type", "default"))
    if kind == "default":
        return _Rope(theta)
    if kind == "linear":
        return _Rope(theta, linear_factor=convert(raw, _LinearRope, path, within=name).factor)
    if kind == "llama3":
        return _Rope(theta, llama3=_read_llama3(raw, path, name))
    raise refusal(path, name, f"has type {kind!r}; 'default', 'linear' and 'llama3' are implemented")


def _read_llama3(raw: dict[str, Any], path: Path, name: str) -> Llama3RopeScaling:
    scaling = convert(raw, Llama3RopeScaling, path, within=name)
    if scaling.low_freq_factor >= scaling.high_freq_factor:
        raise refusal(path, f"{name}.high_freq_factor", "must be above low_freq_factor")
    return scaling


def _read_generation_defaults(config: _ConfigFile, config_path: Path) -> GenerationDefaults:
    path = config_path.with_name("generation_config.json")
    raw = read_object(path) if os.path.exists(path) else {}
    file = convert({name: value for name, value in raw.items() if value is not None}, _GenerationFile, path)
    for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty"):
        if not RANGES[name].holds(getattr(file, name)):
            raise refusal(path, name, f"is {getattr(file, name)}; it must be {RANGES[name]}")
    eos_token_ids = (
        _eos_token_ids(config.eos_token_id, config.vocab_size, config_path)
        if file.eos_token_id is None
        else _eos_token_ids(file.eos_token_id, config.vocab_size, path)
    )
    if not file.do_sample:
        return GenerationDefaults(eos_token_ids, repetition_penalty=file.repetition_penalty)
    return GenerationDefaults(
        eos_token_ids, file.temperature, file.top_p, file.top_k, file.min_p, file.repetition_penalty
    )


def _eos_token_ids(said: int | tuple[int, ...] | None, vocab_size: int, path: Path) -> tuple[int, ...]:
    token_ids = () if said is None else (said,) if isinstance(said, int) else said
    for token_id in token_ids:
        if token_id >= vocab_size:
            raise refusal(path, "eos_token_id", f"is {token_id}, outside the vocabulary of {vocab_size}")
    return token_ids
