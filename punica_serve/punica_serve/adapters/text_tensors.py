"""The tensors of an adapter's file that update the text model, and the path that it has there."""

from collections.abc import Mapping
from dataclasses import dataclass

from punica_serve.adapters.adapter import TensorPlace
from punica_serve.adapters.base_modules import ALONE, PEFT_PREFIX, WRAPPED, BaseModules
from punica_serve.errors import AdapterRejected

#: The parts of a model that also sees images that text does not pass.
_IMAGE_PARTS = ("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector.")


@dataclass(frozen=True, slots=True)
class TextTensors:
    """The tensors of a file that update the text model."""

    stem: str
    tensors: Mapping[str, TensorPlace]
    #: Tensors that update what only images pass, and so change no answer here.
    num_image_tensors: int
    #: Copies of the base model's matrices that PEFT has saved, with their names, by module.
    copies: Mapping[str, tuple[str, TensorPlace]]


def text_tensors(tensors: Mapping[str, TensorPlace]) -> TextTensors:
    """Raises AdapterRejected for a file that updates nothing but what images pass."""
    image_parts = tuple(PEFT_PREFIX + part for part in _IMAGE_PARTS)
    text = {name: tensor for name, tensor in tensors.items() if not name.startswith(image_parts)}
    if tensors and not text:
        first = min(tensors)
        reason = f"it updates only the part for images, as tensor `{first[:200]}` does; train modules of the text model"
        raise AdapterRejected(reason, param=first)
    stem = next((stem for stem in WRAPPED if any(name.startswith(f"{PEFT_PREFIX}{stem}.") for name in text)), ALONE)
    num_image_tensors = len(tensors) - len(text)
    copies = {name: module for module, path in BaseModules(0, {}, stem).vocabulary() for name in _copy_names(path)}
    copied = {module: (name, text.pop(name)) for name, module in copies.items() if name in text}
    return TextTensors(stem, text, num_image_tensors, copied)


def _copy_names(path: str) -> tuple[str, str]:
    """PEFT's names for a copy of the embedding or the head: of one that the adapter updates, and of any other."""
    return f"{PEFT_PREFIX}{path}.base_layer.weight", f"{PEFT_PREFIX}{path}.weight"
