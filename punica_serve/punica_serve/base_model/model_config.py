"""The shape of a base model, from config.json and generation_config.json of a Hugging Face folder. Free of torch.

``read_model_config(folder)`` accepts the models in ``architectures`` and refuses, with a ModelRejected that names the
field, everything that the engine does not implement: a model is served as it was trained or not at all.
"""

import os
from dataclasses import astuple, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec

from punica_serve.base_model.architectures import Architecture, class_names, read_architecture, text_config
from punica_serve.base_model.generation_config import GenerationDefaults, read_generation_defaults
from punica_serve.base_model.group_sizes import VOCABULARY_BLOCK, check_group_size, check_lora_division
from punica_serve.base_model.lora_layout import FUSED_GROUPS, LORA_GROUPS
from punica_serve.base_model.model_files import PositiveFloat, PositiveInt, convert, read_object, refusal
from punica_serve.base_model.model_spec import (
    BlockNorms,
    LayerSpec,
    ModelSpec,
    Norm,
    Projection,
    ProjectionGroup,
    RopeScaling,
    RotarySpec,
)
from punica_serve.base_model.rank import SINGLE, Rank
from punica_serve.base_model.rope_config import Rope, read_longrope, read_rope, split_ropes
from punica_serve.base_model.windows import read_windows
from punica_serve.errors import ModelRejected

_MODEL_FOLDER = "set `engine.model`, or LLM's `model`, to a folder on this machine in Hugging Face's format"

#: The dtypes in which weights are stored and computed.
ModelDtype = Literal["float32", "float16", "bfloat16"]

_TokenId = Annotated[int, msgspec.Meta(ge=0)]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder's hyperparameters, in Hugging Face's names: the whole model's, or those of a rank's share (``shard``).

    A rank has fewer heads and a smaller MLP. Its vocab_size is the whole model's, ``vocabulary`` its share.
    """

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
    rope_scaling: RopeScaling | None
    #: All frequencies are divided by it ("linear" scaling); 1 means no scaling.
    rope_linear_factor: float
    tie_word_embeddings: bool
    #: `_name_or_path` or the folder's name, compared with an adapter's base_model_name_or_path.
    name: str
    #: The dtype of the checkpoint.
    dtype: ModelDtype = "float32"
    #: Whether q, k and v have a bias.
    qkv_bias: bool = False
    #: Whether each head of queries and keys is normed before it is rotated.
    qk_norm: bool = False
    #: Whether q, k and v, and gate and up, are one linear module each, as in Phi-3.
    fused_projections: bool = False
    #: Tokens that a row of each layer attends to; None means the whole context. Empty: no layer has a window.
    windows: tuple[int | None, ...] = ()
    #: Elements of each head that are rotated, the first ones; None: all.
    rotary_dim: int | None = None
    #: The rotary embedding of the layers with a window; None: that of the others.
    window_rope: Rope | None = None
    #: Gemma's layers: norms of 1 + w, before and behind each block, scaled embeddings and GeGLU.
    is_gemma: bool = False
    #: Attention scores are divided by its root; None: by head_dim's.
    query_pre_attn_scalar: float | None = None
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None
    generation: GenerationDefaults = field(default_factory=GenerationDefaults)
    #: Transformers' classes of such a model; empty if it was not read from a file.
    class_names: tuple[str, ...] = field(default=(), compare=False, repr=False)
    #: Where it was read from; None if it was not.
    folder: Path | None = field(default=None, compare=False, repr=False)
    rank: Rank = SINGLE
    #: Whether a rank has a share of the A of q, k, v, gate and up too, and the ranks add up x A.
    divides_lora: bool = False
    #: The model that a rank has a share of; None: this one.
    unsharded: "ModelConfig | None" = None

    @property
    def whole(self) -> "ModelConfig":
        """The whole model."""
        return self.unsharded or self

    @property
    def vocabulary(self) -> range:
        """The token ids whose embeddings and logits a rank has."""
        return self.rank.blocks(self.vocab_size, VOCABULARY_BLOCK)

    def shard(self, rank: Rank, *, divides_lora: bool = False) -> "ModelConfig":
        """The share of a rank. Raises ConfigError, by name, for what such a group can't divide."""
        if rank.size == 1:
            return self
        check_group_size(self, rank.size)
        if divides_lora:
            check_lora_division(self.hidden_size, rank.size)
        return replace(
            self,
            num_attention_heads=len(rank.share(self.num_attention_heads)),
            num_key_value_heads=len(rank.share(self.num_key_value_heads)),
            intermediate_size=len(rank.share(self.intermediate_size)),
            rank=rank,
            divides_lora=divides_lora,
            unsharded=self,
        )

    @property
    def spec(self) -> ModelSpec:
        """The operators of a layer and their sizes."""
        return _spec(self)

    @property
    def linear_shapes(self) -> dict[str, tuple[int, int]]:
        """(out_features, in_features) of the linear modules of a layer."""
        return self.spec.linear_shapes


@cache
def _spec(config: ModelConfig) -> ModelSpec:
    projections = {projection.name: projection for projection in _projections(config)}
    modules = FUSED_GROUPS if config.fused_projections else LORA_GROUPS
    divided_a = config.rank.share(config.hidden_size) if config.divides_lora else None
    return ModelSpec(
        layers=_layers(config),
        groups=tuple(
            # The norms that read o and down add partial sums, and so does the rotary embedding that reads qkv.
            ProjectionGroup(
                name,
                tuple(projections[module] for module in names),
                split_k=name in ("qkv", "o", "down"),
                bias=name == "qkv" and config.qkv_bias,
                row_parallel=name in ("o", "down"),
                divided_a=None if name in ("o", "down") else divided_a,
            )
            for name, names in modules.items()
        ),
        vocabulary=_vocabulary(config),
        layer_norms=_layer_norms(config),
        block_norms=_block_norms(config),
        norm_eps=config.rms_norm_eps,
        norm_offset=1.0 if config.is_gemma else 0.0,
        activation="gelu_tanh" if config.is_gemma else "silu",
        attention_scale=(config.query_pre_attn_scalar or config.head_dim) ** -0.5,
        attention_soft_cap=config.attn_logit_softcapping,
        logit_soft_cap=config.final_logit_softcapping,
        embedding_scale=config.hidden_size**0.5 if config.is_gemma else None,
    )


def _projections(config: ModelConfig) -> tuple[Projection, ...]:
    """All linear modules that any of the models has, fused or not."""
    whole, rank = config.whole, config.rank
    hidden = range(config.hidden_size)
    query = rank.share(whole.num_attention_heads, config.head_dim)
    key_value = rank.share(whole.num_key_value_heads, config.head_dim)
    inner = rank.share(whole.intermediate_size)
    num_queries, num_keys = whole.num_attention_heads * config.head_dim, whole.num_key_value_heads * config.head_dim
    key, value = _moved(key_value, num_queries), _moved(key_value, num_queries + num_keys)
    return (
        Projection("q_proj", "self_attn", (query,), hidden),
        Projection("k_proj", "self_attn", (key_value,), hidden),
        Projection("v_proj", "self_attn", (key_value,), hidden),
        Projection("qkv_proj", "self_attn", _joined(query, key, value), hidden),
        Projection("o_proj", "self_attn", (hidden,), query),
        Projection("gate_proj", "mlp", (inner,), hidden),
        Projection("up_proj", "mlp", (inner,), hidden),
        Projection("gate_up_proj", "mlp", _joined(inner, _moved(inner, whole.intermediate_size)), hidden),
        Projection("down_proj", "mlp", (hidden,), inner),
    )


def _vocabulary(config: ModelConfig) -> tuple[ProjectionGroup, ...]:
    hidden, tokens = range(config.hidden_size), config.vocabulary
    embedding, head = Projection("embed_tokens", "", (hidden,), tokens), Projection("lm_head", "", (tokens,), hidden)
    return (
        ProjectionGroup("embed", (embedding,), split_k=False, row_parallel=True),
        ProjectionGroup("head", (head,), split_k=False),
    )


def _moved(part: range, offset: int) -> range:
    return range(part.start + offset, part.stop + offset)


def _joined(*parts: range) -> tuple[range, ...]:
    """One range if they are the whole, else each."""
    whole = range(parts[0].start, parts[-1].stop)
    return (whole,) if len(whole) == sum(map(len, parts)) else parts


def _layers(config: ModelConfig) -> tuple[LayerSpec, ...]:
    rope = Rope(config.rope_theta, config.rope_linear_factor, config.rope_scaling, config.rotary_dim)
    whole, windowed = (_rotary(config, each) for each in (rope, config.window_rope or rope))
    windows = config.windows or (None,) * config.num_hidden_layers
    return tuple(LayerSpec(whole if window is None else windowed, window) for window in windows)


def _rotary(config: ModelConfig, rope: Rope) -> RotarySpec:
    return RotarySpec(
        head_dim=config.head_dim,
        theta=rope.theta,
        linear_factor=rope.linear_factor,
        scaling=rope.scaling,
        max_position=config.max_position_embeddings,
        rotary_dim=rope.rotary_dim or config.head_dim,
    )


def _block_norms(config: ModelConfig) -> BlockNorms:
    if not config.is_gemma:
        return BlockNorms()
    return BlockNorms(
        behind_attention="post_attention_layernorm",
        before_mlp="pre_feedforward_layernorm",
        behind_mlp="post_feedforward_layernorm",
    )


def _layer_norms(config: ModelConfig) -> tuple[Norm, ...]:
    names = filter(None, astuple(_block_norms(config)))
    blocks = tuple(Norm(name, config.hidden_size) for name in names)
    heads = (Norm("self_attn.q_norm", config.head_dim), Norm("self_attn.k_norm", config.head_dim))
    return blocks + heads if config.qk_norm else blocks


class _ConfigFile(msgspec.Struct, frozen=True):
    """The fields of a config.json that are read, with the names and defaults of transformers."""

    vocab_size: PositiveInt
    hidden_size: PositiveInt
    intermediate_size: PositiveInt
    num_hidden_layers: PositiveInt
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
    if not os.path.isdir(folder):
        raise ModelRejected(f"model folder {folder} does not exist; {_MODEL_FOLDER}")
    path = folder / "config.json"
    if not path.exists():
        raise ModelRejected(f"model folder {folder} has no config.json; {_MODEL_FOLDER}")
    raw = text_config(read_object(path), path)
    architecture = read_architecture(raw, path)
    _refuse_formats(raw, path)
    raw = {**architecture.defaults, **raw}
    file = convert(raw, _ConfigFile, path)
    _check_heads(file, path)
    head_dim = file.head_dim or file.hidden_size // file.num_attention_heads
    rope, window_rope = _ropes(raw, path, architecture, head_dim, file.max_position_embeddings)
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
            raw,
            path,
            rule=architecture.windows,
            num_layers=file.num_hidden_layers,
            max_position_embeddings=file.max_position_embeddings,
        ),
        rotary_dim=rope.rotary_dim,
        window_rope=window_rope,
        is_gemma=architecture.is_gemma,
        query_pre_attn_scalar=file.query_pre_attn_scalar if architecture.is_gemma else None,
        attn_logit_softcapping=file.attn_logit_softcapping if architecture.is_gemma else None,
        final_logit_softcapping=file.final_logit_softcapping if architecture.is_gemma else None,
        generation=read_generation_defaults(
            raw,
            path,
            eos_token_id=file.eos_token_id,
            vocab_size=file.vocab_size,
            max_position_embeddings=file.max_position_embeddings,
        ),
        class_names=class_names(architecture),
        folder=folder,
    )


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
    if raw.get("quantization_config"):
        reason = "is set; quantized weights are not implemented: take the checkpoint without"
        raise refusal(path, "quantization_config", reason)


def _check_heads(file: _ConfigFile, path: Path) -> None:
    if file.num_attention_heads % (file.num_key_value_heads or 1):
        raise refusal(path, "num_key_value_heads", "must divide num_attention_heads")
    if file.head_dim is None and file.hidden_size % file.num_attention_heads:
        raise refusal(path, "num_attention_heads", "must divide hidden_size, or head_dim be given")
    if (file.head_dim or file.hidden_size // file.num_attention_heads) % 2:
        raise refusal(path, "head_dim", "must be even: rotary embeddings rotate pairs")
