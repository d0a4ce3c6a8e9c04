"""The weights of a model, allocated on their device at once and filled tensor by tensor.

Beside the model itself the device holds one tensor of the checkpoint at a time, and the host none: files are mapped.
A checkpoint that lacks a tensor, has one too many or one of another shape is refused before anything is read.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from punica_serve.base_model.model_config import ModelConfig
from punica_serve.base_model.model_spec import ModelSpec, ProjectionGroup
from punica_serve.errors import ModelRejected
from punica_serve.models.weights import StoredTensor, list_weights, read_weights
from punica_serve.protocol import LoraGroup

_HEAD = "lm_head.weight"
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
    #: [vocab, hidden]
    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    #: [vocab, hidden]; the embedding itself if they are tied.
    lm_head: Tensor


def load_weights(folder: Path, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> ModelWeights:
    """Loads the checkpoint in a folder and converts it to ``dtype``.

    Raises ModelRejected if a tensor is missing, has another shape, or would be ignored.
    """
    stored = list_weights(folder)
    # A checkpoint may have a head of its own although its config ties them; transformers unties them, too.
    if _HEAD in stored:
        config = replace(config, tie_word_embeddings=False)
    _check(stored, _places(empty_weights(config, dtype, torch.device("meta")), config))
    weights = empty_weights(config, dtype, device)
    places = _places(weights, config)
    for name, tensor in read_weights({name: stored[name] for name in places}):
        places[name].copy_(tensor)
    if config.spec.norm_offset:
        for norm in _norms(weights):
            norm.add_(config.spec.norm_offset)
    return weights


def dummy_weights(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> ModelWeights:
    """Random matrices and biases, the same at every start on one kind of device, and norms of ones."""
    weights = empty_weights(config, dtype, device)
    generator = torch.Generator(device).manual_seed(_DUMMY_SEED)
    for name, place in _places(weights, config).items():
        if name.endswith("norm.weight"):
            place.fill_(1)
        else:
            place.normal_(0, _DUMMY_STD, generator=generator)
    return weights


def empty_weights(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> ModelWeights:
    """Uninitialised weights of the config's shapes."""
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

    embedding = empty(config.vocab_size, config.hidden_size)
    return ModelWeights(
        embedding=embedding,
        layers=tuple(layer() for _ in range(spec.num_layers)),
        norm=norm_of(config.hidden_size),
        lm_head=embedding if config.tie_word_embeddings else torch.empty_like(embedding),
    )


def _norms(weights: ModelWeights) -> Iterator[Tensor]:
    for layer in weights.layers:
        yield from layer.norms.values()
    yield weights.norm


def weights_num_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """Bytes of a model on its device."""
    places = _places(empty_weights(config, dtype, torch.device("meta")), config)
    return sum(place.nbytes for place in places.values())


def _places(weights: ModelWeights, config: ModelConfig) -> dict[str, Tensor]:
    """Views of the weights, by the name of the checkpoint tensor that belongs there."""
    places = {"model.embed_tokens.weight": weights.embedding}
    for number, layer in enumerate(weights.layers):
        places.update(_layer_places(f"model.layers.{number}", layer, config.spec))
    places["model.norm.weight"] = weights.norm
    if not config.tie_word_embeddings:
        places[_HEAD] = weights.lm_head
    return places


def _layer_places(prefix: str, layer: LayerWeights, spec: ModelSpec) -> Iterator[tuple[str, Tensor]]:
    for norm, place in layer.norms.items():
        yield f"{prefix}.{norm}.weight", place
    for group in spec.groups:
        yield from _slices(prefix, group, layer.linears[group.name], "weight")
        if group.bias:
            yield from _slices(prefix, group, layer.biases[group.name], "bias")


def _slices(prefix: str, group: ProjectionGroup, stacked: Tensor, kind: str) -> Iterator[tuple[str, Tensor]]:
    slices = stacked.split([projection.out_features for projection in group.projections])
    for projection, place in zip(group.projections, slices, strict=True):
        yield f"{prefix}.{projection.parent}.{projection.name}.{kind}", place


def _check(stored: Mapping[str, StoredTensor], places: Mapping[str, Tensor]) -> None:
    for name, place in places.items():
        if name not in stored:
            raise ModelRejected(f"the weights lack tensor `{name}`", param=name)
        if stored[name].shape != place.shape:
            message = f"tensor `{name}` has shape {stored[name].shape}, config.json says {tuple(place.shape)}"
            raise ModelRejected(message, param=name)
    # A tensor that nothing reads means that the checkpoint is not the model that config.json describes.
    leftovers = sorted(name for name in stored if name not in places and not name.endswith("rotary_emb.inv_freq"))
    if leftovers:
        message = f"the weights hold tensor `{leftovers[0]}`, which the model does not read"
        raise ModelRejected(message, param=leftovers[0])
