"""The weights of a model, or of a rank's share of it, allocated on their device at once and filled tensor by tensor.

Beside the model itself the device holds one tensor of the checkpoint at a time, and the host none: files are mapped. A
rank reads its share alone.
``base_model/checkpoint.py`` refuses a checkpoint of other tensors before anything is read.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from punica_serve.base_model.checkpoint import (
    EMBEDDING,
    HEAD,
    NORM,
    checked_weights,
    layer_linear,
    layer_norm,
    tensor_shapes,
)
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.base_model.model_spec import ProjectionGroup
from punica_serve.models.weights import read_weights
from punica_serve.process.start_clock import Progress, no_progress
from punica_serve.protocol import LoraGroup

#: The standard deviation of dummy weights, as models are initialised: activations neither vanish nor grow unbounded.
_DUMMY_STD = 0.02
_DUMMY_SEED = 0


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer."""

    #: [hidden] or, of the norms of heads, [head_dim]; by the norm's path within the layer.
    norms: Mapping[str, Tensor]
    #: The stacked matrix of each group, [out_features, in_features].
    linears: Mapping[LoraGroup, Tensor]
    #: [out_features], of the groups that have one.
    biases: Mapping[LoraGroup, Tensor]


@dataclass(frozen=True, slots=True)
class ModelWeights:
    #: [tokens of the rank's vocabulary, hidden]
    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    #: Like it; the embedding itself if they are tied.
    lm_head: Tensor


def load_weights(
    folder: Path,
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    progress: Progress = no_progress,
) -> ModelWeights:
    """Loads the checkpoint in a folder and converts it to ``dtype``. Raises ModelRejected as ``checked_weights``."""
    stored, config = checked_weights(folder, config)
    weights = empty_weights(config, dtype, device)
    places = list(_places(weights, config))
    parts = {number: replace(stored[place.name], index=place.part) for number, place in enumerate(places)}
    for done, (number, tensor) in enumerate(read_weights(parts), 1):
        places[number].tensor.copy_(tensor)
        progress(done, len(places))
    if config.spec.norm_offset:
        for norm in _norms(weights):
            norm.add_(config.spec.norm_offset)
    return weights


def dummy_weights(
    config: ModelConfig, dtype: torch.dtype, device: torch.device, progress: Progress = no_progress
) -> ModelWeights:
    """Random matrices and biases, the same at every start on one kind of device, and norms of ones.

    Ranks of groups of any size draw the same model: each draws all of it, tensor by tensor, and keeps its share.
    """
    weights, shapes = empty_weights(config, dtype, device), tensor_shapes(config)
    generator = torch.Generator(device).manual_seed(_DUMMY_SEED)
    by_tensor = groupby(_places(weights, config), key=attrgetter("name"))
    for done, (name, places) in enumerate(by_tensor):
        progress(done, len(shapes))
        own = list(places)
        if name.endswith("norm.weight"):
            own[0].tensor.fill_(1)
        elif not own[0].part:
            own[0].tensor.normal_(0, _DUMMY_STD, generator=generator)
        else:
            whole = torch.empty(shapes[name], dtype=dtype, device=device).normal_(0, _DUMMY_STD, generator=generator)
            for place in own:
                place.tensor.copy_(whole[place.part])
    return weights


def empty_weights(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> ModelWeights:
    """Uninitialised weights of the config's shapes, which are a rank's own."""
    spec = config.spec

    # A weight that something is added to needs more digits than it is stored with.
    norm_dtype = torch.float32 if spec.norm_offset else dtype

    def empty(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    def norm_of(size: int) -> Tensor:
        return torch.empty(size, dtype=norm_dtype, device=device)

    def layer() -> LayerWeights:
        return LayerWeights(
            norms={norm.name: norm_of(norm.size) for norm in spec.layer_norms},
            linears={group.name: empty(group.out_features, group.in_features) for group in spec.groups},
            biases={group.name: empty(group.out_features) for group in spec.groups if group.bias},
        )

    embedding = empty(len(config.vocabulary), config.hidden_size)
    return ModelWeights(
        embedding=embedding,
        layers=tuple(layer() for _ in range(spec.num_layers)),
        norm=norm_of(config.hidden_size),
        lm_head=embedding if config.tie_word_embeddings else torch.empty_like(embedding),
    )


def weights_num_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """Bytes of a model, or of a rank's share, on its device."""
    return sum(place.tensor.nbytes for place in _places(empty_weights(config, dtype, torch.device("meta")), config))


class _Place(NamedTuple):
    """A part of the weights, and where in the checkpoint it comes from."""

    #: A view of the weights.
    tensor: Tensor
    #: The checkpoint's tensor.
    name: str
    #: The part of it that belongs here, by dimension; empty: all of it.
    part: tuple[slice, ...] = ()


def _places(weights: ModelWeights, config: ModelConfig) -> Iterator[_Place]:
    """All parts of the weights; those of one tensor follow each other."""
    rows = () if config.rank.size == 1 else (_slice(config.vocabulary),)
    yield _Place(weights.embedding, EMBEDDING, rows)
    for number, layer in enumerate(weights.layers):
        yield from _layer_places(number, layer, config)
    yield _Place(weights.norm, NORM)
    if not config.tie_word_embeddings:
        yield _Place(weights.lm_head, HEAD, rows)


def _layer_places(number: int, layer: LayerWeights, config: ModelConfig) -> Iterator[_Place]:
    for norm, tensor in layer.norms.items():
        yield _Place(tensor, layer_norm(number, norm))
    for group in config.spec.groups:
        yield from _slices(number, group, layer.linears[group.name], "weight", config)
        if group.bias:
            yield from _slices(number, group, layer.biases[group.name], "bias", config)


def _slices(
    number: int, group: ProjectionGroup, stacked: Tensor, kind: Literal["weight", "bias"], config: ModelConfig
) -> Iterator[_Place]:
    """The parts of a group's stacked matrix, or of its biases."""
    num_dims = stacked.dim()
    slices = stacked.split([projection.out_features for projection in group.projections])
    for projection, rows in zip(group.projections, slices, strict=True):
        name = layer_linear(number, projection, kind)
        if rows.shape == config.whole.linear_shapes[projection.name][:num_dims]:
            yield _Place(rows, name)
            continue
        for source, place in projection.output_places:
            yield _Place(rows[_slice(place)], name, (_slice(source), _slice(projection.inputs))[:num_dims])


def _slice(part: range) -> slice:
    return slice(part.start, part.stop)


def _norms(weights: ModelWeights) -> Iterator[Tensor]:
    for layer in weights.layers:
        yield from layer.norms.values()
    yield weights.norm
