"""A ModelConfig from config.json and generation_config.json of a Hugging Face folder.

``read_model_config(folder)`` accepts the models in ``architectures`` and refuses, with a ModelRejected that names the
field, everything that the engine does not implement: a model is served as it was trained or not at all.
"""

import os
from pathlib import Path
from typing import Annotated, Any, get_args

import msgspec

from punica_serve.base_model.architectures import Architecture, class_names, read_architecture, text_config
from punica_serve.base_model.generation_config import read_generation_defaults
from punica_serve.base_model.model_config import ModelConfig, ModelDtype
from punica_serve.base_model.model_files import PositiveFloat, PositiveInt, convert, read_object, refusal
from punica_serve.base_model.rope_config import Rope, read_longrope, read_rope, split_ropes
from punica_serve.base_model.unsupported import QUANTIZATION_FIELDS
from punica_serve.base_model.windows import read_windows
from punica_serve.errors import ModelRejected

_MODEL_FOLDER = "set `engine.model`, or LLM's `model`, to a folder on this machine in Hugging Face's format"

_TokenId = Annotated[int, msgspec.Meta(ge=0)]
#: No model has nearly as many, and what is made for each layer must end.
_NumLayers = Annotated[int, msgspec.Meta(ge=1, le=10_000)]


class _ConfigFile(msgspec.Struct, frozen=True):
    """The fields of a config.json that are read, with the names and defaults of transformers."""

    vocab_size: PositiveInt
    hidden_size: PositiveInt
    intermediate_size: PositiveInt
    num_hidden_layers: _NumLayers
    num_attention_heads: PositiveInt
    max_position_embeddings: PositiveInt
    #: None: as many as num_attention_heads.
    num_key_value_heads: PositiveInt | None = None
    #: None: hidden_size / num_attention_heads.
    head_dim: PositiveInt | None = None
    rms_norm_eps: PositiveFloat = 1e-6
    tie_word_embeddings: bool = False
    dtype: ModelDtype | None = None
    #: The older name of dtype.
    torch_dtype: ModelDtype | None = None
    eos_token_id: _TokenId | tuple[_TokenId, ...] | None = None
    query_pre_attn_scalar: PositiveFloat | None = None
    attn_logit_softcapping: PositiveFloat | None = None
    final_logit_softcapping: PositiveFloat | None = None
    name_or_path: str | None = msgspec.field(default=None, name="_name_or_path")


def read_model_config(folder: Path) -> ModelConfig:
    """Reads a model folder's configuration. Raises ModelRejected."""
    path = _config_path(folder)
    document = read_object(path)
    raw = text_config(document, path)
    architecture = read_architecture(raw, path)
    _refuse_formats(raw, path)
    fields = {**architecture.defaults, **raw}
    file = convert(fields, _ConfigFile, path)
    _check_heads(file, path)
    head_dim = file.head_dim or file.hidden_size // file.num_attention_heads
    rope, window_rope = _ropes(fields, path, architecture, head_dim, file.max_position_embeddings)
    return ModelConfig(
        vocab_size=file.vocab_size,
        hidden_size=file.hidden_size,
        intermediate_size=file.intermediate_size,
        num_hidden_layers=file.num_hidden_layers,
        num_attention_heads=file.num_attention_heads,
        num_key_value_heads=file.num_key_value_heads or file.num_attention_heads,
        head_dim=head_dim,
        max_position_embeddings=file.max_position_embeddings,
        rms_norm_eps=file.rms_norm_eps,
        rope_theta=rope.theta,
        rope_scaling=rope.scaling,
        rope_linear_factor=rope.linear_factor,
        tie_word_embeddings=file.tie_word_embeddings,
        name=file.name_or_path or folder.name,
        dtype=file.dtype or file.torch_dtype or "float32",
        qkv_bias=architecture.qkv_bias,
        qk_norm=architecture.qk_norm,
        fused_projections=architecture.has_fused_projections,
        windows=read_windows(
            fields,
            path,
            rule=architecture.windows,
            num_layers=file.num_hidden_layers,
            max_position_embeddings=file.max_position_embeddings,
        ),
        rotary_dim=rope.rotary_dim,
        window_rope=window_rope,
        is_gemma=architecture.is_gemma,
        norms_behind_blocks=architecture.norms_behind_blocks,
        query_pre_attn_scalar=file.query_pre_attn_scalar,
        attn_logit_softcapping=file.attn_logit_softcapping,
        final_logit_softcapping=file.final_logit_softcapping,
        generation=read_generation_defaults(
            fields,
            path,
            eos_token_id=file.eos_token_id,
            vocab_size=file.vocab_size,
            max_position_embeddings=file.max_position_embeddings,
        ),
        class_names=class_names(architecture),
        sees_images=raw is not document,
        folder=folder,
    )


def _config_path(folder: Path) -> Path:
    if not os.path.isdir(folder):
        raise ModelRejected(f"model folder {folder} does not exist; {_MODEL_FOLDER}")
    path = folder / "config.json"
    if not path.exists():
        raise ModelRejected(f"model folder {folder} has no config.json; {_MODEL_FOLDER}")
    return path


def _ropes(
    raw: dict[str, Any], path: Path, architecture: Architecture, head_dim: int, max_position_embeddings: int
) -> tuple[Rope, Rope | None]:
    """Those of layers that see the whole context and, where they have their own, of layers with a window."""
    if architecture.has_longrope:
        return read_longrope(raw, path, head_dim=head_dim, max_position_embeddings=max_position_embeddings), None
    if architecture.window_rope_theta is None:
        return read_rope(raw, path, max_position_embeddings=max_position_embeddings), None
    full, sliding = split_ropes(raw, path, architecture.window_rope_theta)
    return (
        read_rope(full, path, max_position_embeddings=max_position_embeddings),
        read_rope(sliding, path, max_position_embeddings=max_position_embeddings),
    )


def _refuse_formats(raw: dict[str, Any], path: Path) -> None:
    """Refuses weights in formats that the engine does not read."""
    for name in ("dtype", "torch_dtype"):
        if raw.get(name) not in (None, *get_args(ModelDtype)):
            raise refusal(path, name, f"is {raw[name]!r}; {', '.join(get_args(ModelDtype))} are implemented")
    for name in QUANTIZATION_FIELDS:
        if raw.get(name):
            raise refusal(path, name, "is set; quantized weights are not implemented: take the checkpoint without")


def _check_heads(file: _ConfigFile, path: Path) -> None:
    if file.num_attention_heads % (file.num_key_value_heads or 1):
        raise refusal(path, "num_key_value_heads", "must divide num_attention_heads")
    if file.head_dim is None and file.hidden_size % file.num_attention_heads:
        raise refusal(path, "num_attention_heads", "must divide hidden_size, or head_dim be given")
    if (file.head_dim or file.hidden_size // file.num_attention_heads) % 2:
        raise refusal(path, "head_dim", "must be even: rotary embeddings rotate pairs")
