"""A Llama model's weights, made on their device at once and filled tensor by tensor.

Beside the model itself the device holds one tensor of the checkpoint at a time, and the host none: files are mapped.
What a checkpoint lacks, has too much or in another shape is refused before anything is read.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from punica_serve.errors import ModelRejected
from punica_serve.model_config import ModelConfig
from punica_serve.models.weights import StoredTensor, list_weights, read_weights

_HEAD = "lm_head.weight"
#: The modules that are stacked into one matrix, by the field of LayerWeights that holds them.
_STACKS = {
    "qkv": ("self_attn", ("q_proj", "k_proj", "v_proj")),
    "o": ("self_attn", ("o_proj",)),
    "gate_up": ("mlp", ("gate_proj", "up_proj")),
    "down": ("mlp", ("down_proj",)),
}
#: Of dummy weights, as models are initialised: activations neither vanish nor grow without bound.
_DUMMY_STD = 0.02
_DUMMY_SEED = 0


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. Matrices are [out, in], as linear() takes them."""

    input_norm: Tensor
    qkv: Tensor
    o: Tensor
    post_attention_norm: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True)
class LlamaWeights:
    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    #: [vocab, hidden]; the embedding itself where they are tied.
    lm_head: Tensor


def load_weights(folder: Path, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> LlamaWeights:
    """The checkpoint in a folder, converted to ``dtype``.

    Raises ModelRejected if a tensor is missing, has another shape, or is one that the engine would ignore.
    """
    stored = list_weights(folder)
    # A checkpoint may ship a head of its own although its config ties them: transformers, too, then unties them.
    if _HEAD in stored:
        config = replace(config, tie_word_embeddings=False)
    _check(stored, _places(empty_weights(config, dtype, torch.device("meta")), config))
    weights = empty_weights(config, dtype, device)
    places = _places(weights, config)
    for name, tensor in read_weights({name: stored[name] for name in places}):
        places[name].copy_(tensor)
    return weights


def dummy_weights(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> LlamaWeights:
    """Random matrices, the same at every start on one kind of device, and norms of ones."""
    weights = empty_weights(config, dtype, device)
    generator = torch.Generator(device).manual_seed(_DUMMY_SEED)
    for place in _places(weights, config).values():
        if place.dim() == 1:
            place.fill_(1)
        else:
            place.normal_(0, _DUMMY_STD, generator=generator)
    return weights


def empty_weights(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> LlamaWeights:
    """Of the config's shapes, not yet written."""

    def empty(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    def stack(field: str) -> Tensor:
        shapes = [config.linear_shapes[module] for module in _STACKS[field][1]]
        return empty(sum(out for out, _ in shapes), shapes[0][1])

    def layer() -> LayerWeights:
        return LayerWeights(
            input_norm=empty(config.hidden_size),
            post_attention_norm=empty(config.hidden_size),
            **{field: stack(field) for field in _STACKS},
        )

    embedding = empty(config.vocab_size, config.hidden_size)
    return LlamaWeights(
        embedding=embedding,
        layers=tuple(layer() for _ in range(config.num_hidden_layers)),
        norm=empty(config.hidden_size),
        lm_head=embedding if config.tie_word_embeddings else torch.empty_like(embedding),
    )


def weights_num_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """What the model takes on its device."""
    places = _places(empty_weights(config, dtype, torch.device("meta")), config)
    return sum(place.nbytes for place in places.values())


def _places(weights: LlamaWeights, config: ModelConfig) -> dict[str, Tensor]:
    """Where each tensor of a checkpoint goes, by its name there: views of the weights."""
    places = {"model.embed_tokens.weight": weights.embedding}
    for number, layer in enumerate(weights.layers):
        places.update(_layer_places(f"model.layers.{number}", layer, config))
    places["model.norm.weight"] = weights.norm
    if not config.tie_word_embeddings:
        places[_HEAD] = weights.lm_head
    return places


def _layer_places(prefix: str, layer: LayerWeights, config: ModelConfig) -> Iterator[tuple[str, Tensor]]:
    yield f"{prefix}.input_layernorm.weight", layer.input_norm
    for field, (block, modules) in _STACKS.items():
        slices = getattr(layer, field).split([config.linear_shapes[module][0] for module in modules])
        for module, place in zip(modules, slices, strict=True):
            yield f"{prefix}.{block}.{module}.weight", place
    yield f"{prefix}.post_attention_layernorm.weight", layer.post_attention_norm


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
        raise ModelRejected(f"the weights hold tensor `{leftovers[0]}`, which no Llama layer reads", param=leftovers[0])
