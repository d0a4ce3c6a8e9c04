"""The operators of one model layer and their sizes, as plain data. Free of torch.

Weights, LoRA pages and the forward pass are laid out by the same ``ModelSpec``, so another architecture of this family
starts with another spec, not with changes in each of them.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Literal

from punica_serve.base_model.lora_layout import LORA_PAGE_RANKS, VOCABULARY_GROUPS
from punica_serve.base_model.model_files import PositiveFloat, PositiveInt
from punica_serve.protocol import LoraGroup

#: The function that gates the MLP.
Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, slots=True)
class Projection:
    """One linear module of a layer, under the name that checkpoints and adapters use: a rank's share of it."""

    name: str
    #: The module that contains it in a checkpoint, such as self_attn.
    parent: str
    #: The outputs of the whole module that are computed, in the order in which they are stacked.
    outputs: tuple[range, ...]
    #: The inputs of the whole module that are read.
    inputs: range

    @property
    def out_features(self) -> int:
        return sum(map(len, self.outputs))

    @property
    def in_features(self) -> int:
        return len(self.inputs)

    @property
    def output_places(self) -> tuple[tuple[range, range], ...]:
        """Each part of ``outputs``, and its place among the outputs that are computed."""
        starts = accumulate(map(len, self.outputs), initial=0)
        return tuple((part, range(start, start + len(part))) for part, start in zip(self.outputs, starts, strict=False))


@dataclass(frozen=True)
class ProjectionGroup:
    """Projections that read the same input: one stacked matrix [out_features, in_features], one launch, one LoRA."""

    name: LoraGroup
    #: In the order in which they are stacked.
    projections: tuple[Projection, ...]
    #: Whether the operator that reads the output can add split-K partial sums.
    split_k: bool
    #: Whether the operator that reads the output adds a bias of each output.
    bias: bool = False
    #: Whether ranks divide its inputs, so that the outputs of a rank are partial sums, and else its outputs.
    row_parallel: bool = False
    #: The inputs whose part of LoRA's A a rank has, where the ranks add up x A; None: all that the rank reads.
    divided_a: range | None = None

    @property
    def in_features(self) -> int:
        return self.projections[0].in_features

    @property
    def lora_inputs(self) -> range:
        """The inputs of the whole module that A has here."""
        return self.divided_a or self.projections[0].inputs

    @property
    def out_features(self) -> int:
        """All slices together."""
        return self.out_offsets[-1]

    @cached_property
    def out_offsets(self) -> tuple[int, ...]:
        """The start of each slice in the outputs, and the end of the last one."""
        return tuple(accumulate((projection.out_features for projection in self.projections), initial=0))


@dataclass(frozen=True, slots=True)
class Norm:
    """The weight of one norm of a layer."""

    #: Its path within the layer, as checkpoints write it.
    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Llama3RopeScaling:
    """Frequency-dependent scaling of rotary embeddings, introduced with Llama 3.1."""

    factor: PositiveFloat
    low_freq_factor: PositiveFloat
    high_freq_factor: PositiveFloat
    original_max_position_embeddings: PositiveInt


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """YaRN (Peng et al., 2023): divides low frequencies, keeps high ones, and scales cos and sin."""

    factor: PositiveFloat
    original_max_position_embeddings: PositiveInt
    #: Rotations within the original context above which a frequency is kept, and below which it is divided.
    beta_fast: PositiveFloat | None = None
    beta_slow: PositiveFloat | None = None
    #: The factor of cos and sin; None means the paper's, 0.1 ln(factor) + 1.
    attention_factor: PositiveFloat | None = None
    #: Whether the range between the two betas is widened to whole frequencies.
    truncate: bool = True

    @property
    def magnitude(self) -> float:
        """The factor of cos and sin."""
        return self.attention_factor or 0.1 * math.log(max(self.factor, 1.0)) + 1.0


@dataclass(frozen=True, slots=True)
class LongRopeScaling:
    """LongRoPE (Ding et al., 2024): every frequency has a divisor of its own, another one in long requests."""

    #: [rotated elements of a head / 2], for requests up to the original context, and for longer ones.
    short_factor: tuple[PositiveFloat, ...]
    long_factor: tuple[PositiveFloat, ...]
    original_max_position_embeddings: PositiveInt
    #: The factor of cos and sin.
    attention_factor: PositiveFloat

    @property
    def magnitude(self) -> float:
        """The factor of cos and sin."""
        return self.attention_factor


RopeScaling = Llama3RopeScaling | YarnScaling | LongRopeScaling


@dataclass(frozen=True, slots=True)
class RotarySpec:
    """Rotary position embedding."""

    head_dim: int
    theta: float
    #: All frequencies are divided by it ("linear" scaling); 1 means no scaling.
    linear_factor: float
    scaling: RopeScaling | None
    max_position: int
    #: Elements of each head that are rotated, the first ones.
    rotary_dim: int

    def start(self, num_tokens: int) -> int:
        """The row of the tables for the first token of a request that may feed ``num_tokens`` to the model.

        LongRoPE has two tables, one behind the other. A request keeps its table, wherever it moves.
        """
        scaling = self.scaling
        if isinstance(scaling, LongRopeScaling) and num_tokens > scaling.original_max_position_embeddings:
            return self.max_position
        return 0


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """The values in which the layers of one model may differ."""

    rotary: RotarySpec
    #: Tokens that a row attends to, itself included; None means the whole context.
    window: int | None = None


@dataclass(frozen=True, slots=True)
class BlockNorms:
    """The names of the norms around a layer's two blocks. Empty: the model has no norm there."""

    before_attention: str = "input_layernorm"
    behind_attention: str = ""
    before_mlp: str = "post_attention_layernorm"
    behind_mlp: str = ""


@dataclass(frozen=True)
class ModelSpec:
    """A decoder: an embedding, layers of equal sizes, a final norm and an output head."""

    layers: tuple[LayerSpec, ...]
    groups: tuple[ProjectionGroup, ...]
    #: The embedding and the head, as far as adapters may update them.
    vocabulary: tuple[ProjectionGroup, ...]
    layer_norms: tuple[Norm, ...]
    block_norms: BlockNorms
    norm_eps: float
    #: Added to the stored weights of all norms, which are then kept in float32, as Gemma computes them.
    norm_offset: float
    activation: Activation
    #: The factor of attention scores.
    attention_scale: float
    #: Scores s become cap * tanh(s / cap), and so do logits; None leaves them.
    attention_soft_cap: float | None
    logit_soft_cap: float | None
    #: The factor of embeddings; None is 1.
    embedding_scale: float | None

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    def rotary_start(self, num_tokens: int) -> int:
        """The layers' ``RotarySpec.start``, in which they agree."""
        return self.layers[0].rotary.start(num_tokens)

    @cached_property
    def windows(self) -> tuple[int | None, ...]:
        """The distinct windows of its layers, in the order of their first layer."""
        return tuple(dict.fromkeys(layer.window for layer in self.layers))

    @property
    def page_window(self) -> int | None:
        """Tokens that a row sees at most in any layer, itself among them; None: some layer sees the whole context.

        Pages behind it are given back. A page holds all layers, so one layer without a window keeps all pages.
        """
        windows = [window for window in self.windows if window is not None]
        return max(windows) if windows and len(windows) == len(self.windows) else None

    @property
    def lora_groups(self) -> tuple[ProjectionGroup, ...]:
        """All that adapters may update."""
        return self.groups + self.vocabulary

    def layers_of(self, group: LoraGroup) -> int:
        """How often the model has a group: in each layer, or once."""
        return 1 if group in VOCABULARY_GROUPS else self.num_layers

    def group(self, name: LoraGroup) -> ProjectionGroup:
        """The group of that name. KeyError if the model has none."""
        return self._groups[name]

    def find(self, module: str) -> tuple[ProjectionGroup, int]:
        """The group that contains a linear module, and the module's index among its slices. KeyError if unknown."""
        return self._places[module]

    @cached_property
    def linear_shapes(self) -> dict[str, tuple[int, int]]:
        """(out_features, in_features) of every linear module of a layer."""
        return _shapes(self.groups)

    @cached_property
    def lora_shapes(self) -> dict[str, tuple[int, int]]:
        """The same of all modules that adapters may update."""
        return _shapes(self.lora_groups)

    @cached_property
    def _groups(self) -> dict[LoraGroup, ProjectionGroup]:
        return {group.name: group for group in self.lora_groups}

    @cached_property
    def _places(self) -> dict[str, tuple[ProjectionGroup, int]]:
        return {
            projection.name: (group, number)
            for group in self.lora_groups
            for number, projection in enumerate(group.projections)
        }


def page_elements(spec: ModelSpec, group: ProjectionGroup) -> int:
    """Elements of A and B in one page of a group."""
    num_columns = len(group.projections) * len(group.lora_inputs) + group.out_features
    return spec.layers_of(group.name) * LORA_PAGE_RANKS * num_columns


def _shapes(groups: Iterable[ProjectionGroup]) -> dict[str, tuple[int, int]]:
    modules = (projection for group in groups for projection in group.projections)
    return {module.name: (module.out_features, module.in_features) for module in modules}
