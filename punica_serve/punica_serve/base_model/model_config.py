"""The shape of a base model and of a rank's share of it, in Hugging Face's names. Free of torch."""

from dataclasses import astuple, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Literal

from punica_serve.base_model.generation_config import GenerationDefaults
from punica_serve.base_model.group_sizes import VOCABULARY_BLOCK, check_group_size, check_lora_division
from punica_serve.base_model.lora_layout import FUSED_GROUPS, LORA_GROUPS
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
from punica_serve.base_model.rope_config import Rope

#: The dtypes in which weights are stored and computed.
ModelDtype = Literal["float32", "float16", "bfloat16"]


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
    #: Gemma's values: norms of 1 + w, scaled embeddings and GeGLU.
    is_gemma: bool = False
    #: Whether each block's output is normed before it is added, as in Gemma 2 and 3.
    norms_behind_blocks: bool = False
    #: Attention scores are divided by its root; None: by head_dim's.
    query_pre_attn_scalar: float | None = None
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None
    generation: GenerationDefaults = field(default_factory=GenerationDefaults)
    #: Transformers' classes of such a model; empty if it was not read from a file.
    class_names: tuple[str, ...] = field(default=(), compare=False, repr=False)
    #: Whether it is the text model of one that also sees images.
    sees_images: bool = field(default=False, compare=False, repr=False)
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
    if not config.norms_behind_blocks:
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
