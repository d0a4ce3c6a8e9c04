"""The tensors that a model's checkpoint holds, and whether a folder holds them. Free of torch.

The loader fills a model's weights by these names, and `punica-serve config check` compares by the same rule.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

from punica_serve.base_model.model_config import ModelConfig
from punica_serve.base_model.model_spec import ModelSpec, Projection
from punica_serve.base_model.weight_headers import StoredTensor, list_weights
from punica_serve.errors import ModelRejected
from punica_serve.numbers import counted

EMBEDDING = "model.embed_tokens.weight"
NORM = "model.norm.weight"
HEAD = "lm_head.weight"

#: Other types are quantized weights, which need their scales, or no weights at all.
_DTYPES = ("F32", "F16", "BF16")
#: The parts of a model that also sees images, as versions of transformers have named them.
_TEXT_PREFIXES = ("language_model.", "model.language_model.")
_IMAGE_PREFIXES = ("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector.")
#: Frequencies that old checkpoints hold, and that config.json tells as well.
_IGNORED = "rotary_emb.inv_freq"
_NUM_TOLD = 3
_ADVICE = "take weights and config.json of one checkpoint, whole"


def layer_norm(layer: int, path: str) -> str:
    """The tensor of a norm, by its path within the layer."""
    return f"model.layers.{layer}.{path}.weight"


def layer_linear(layer: int, projection: Projection, kind: Literal["weight", "bias"]) -> str:
    """The tensor of a linear module."""
    return f"model.layers.{layer}.{projection.parent}.{projection.name}.{kind}"


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor of a checkpoint, whole, also if the config is of a rank's share."""
    vocabulary = (config.vocab_size, config.hidden_size)
    shapes = {EMBEDDING: vocabulary, **dict(_layer_shapes(config.whole.spec)), NORM: (config.hidden_size,)}
    return shapes if config.tie_word_embeddings else {**shapes, HEAD: vocabulary}


def _layer_shapes(spec: ModelSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    for layer in range(spec.num_layers):
        for norm in spec.layer_norms:
            yield layer_norm(layer, norm.name), (norm.size,)
        for group in spec.groups:
            for module in group.projections:
                yield layer_linear(layer, module, "weight"), (module.out_features, module.in_features)
                if group.bias:
                    yield layer_linear(layer, module, "bias"), (module.out_features,)


def checked_weights(folder: Path, config: ModelConfig) -> tuple[dict[str, StoredTensor], ModelConfig]:
    """The tensors of the checkpoint in a folder, from its files' headers alone, and the config that they make.

    Raises ModelRejected as ``list_weights`` and ``check_tensors``.
    """
    return check_tensors(folder, list_weights(folder), config)


def check_tensors(
    folder: Path, listed: Mapping[str, StoredTensor], config: ModelConfig
) -> tuple[dict[str, StoredTensor], ModelConfig]:
    """The tensors of the text model among those ``listed`` of a folder's files, and the config that they make.

    The text model of one that also sees images is named as if it stood alone, and the tensors for images are left out.

    Raises ModelRejected if a tensor is missing, has another shape or type, or would be ignored.
    """
    stored = _text_model(listed)
    _check_types(stored.values())
    # A checkpoint may have a head of its own although its config ties them; transformers unties them, too.
    if HEAD in stored:
        config = replace(config, tie_word_embeddings=False)
    shapes = tensor_shapes(config)
    if missing := [name for name in shapes if name not in stored]:
        raise ModelRejected(
            f"the weights in {folder} lack {_told(missing)}, which config.json asks for; {_ADVICE}", param=missing[0]
        )
    for name, shape in shapes.items():
        if (found := stored[name].shape) != shape:
            message = f"tensor `{name}` in {folder} has shape {list(found)}, config.json says {list(shape)}; {_ADVICE}"
            raise ModelRejected(message, param=name)
    # A tensor that nothing reads means that the checkpoint is not the model that config.json describes.
    if unread := [name for name in stored if name not in shapes and not name.endswith(_IGNORED)]:
        message = f"the weights in {folder} hold {_told(unread)}, which the model does not read; {_ADVICE}"
        raise ModelRejected(message, param=unread[0])
    return stored, config


def _text_model(listed: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    if not any(name.startswith(_TEXT_PREFIXES) for name in listed):
        return dict(listed)
    return {_text_name(name): tensor for name, tensor in listed.items() if not name.startswith(_IMAGE_PREFIXES)}


def _text_name(name: str) -> str:
    """Without the name of the wrapper's text model, which is the outer or the inner one."""
    return name.replace("model.language_model.", "model.", 1).removeprefix("language_model.")


def _check_types(tensors: Iterable[StoredTensor]) -> None:
    for tensor in tensors:
        if tensor.dtype not in _DTYPES:
            told = f"{tensor.path}: tensor `{tensor.name}` is of {tensor.dtype}; only {', '.join(_DTYPES)} are read"
            raise ModelRejected(f"{told}: take a checkpoint that is not quantized", param=tensor.name)


def _told(names: list[str]) -> str:
    """The first ones by name, and how many there are."""
    first = ", ".join(f"`{name}`" for name in names[:_NUM_TOLD])
    what = counted(len(names), "tensor")
    return f"tensor {first}" if len(names) == 1 else f"{what}: {first}{' ...' if len(names) > _NUM_TOLD else ''}"
