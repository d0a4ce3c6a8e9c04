"""Reads the weights of a Hugging Face folder: one safetensors file, or several with an index."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from safetensors import SafetensorError, safe_open
from torch import Tensor

from punica_serve.base_model.weight_files import weight_files
from punica_serve.errors import ModelRejected

#: Other types are quantized weights, which need their scales, or no weights at all.
_DTYPES = ("F32", "F16", "BF16")

#: The parts of a model that also sees images, as versions of transformers have named them.
_TEXT_PREFIXES = ("language_model.", "model.language_model.")
_IMAGE_PREFIXES = ("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector.")


Key = TypeVar("Key")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a file that has not been read, or a part of one."""

    path: Path
    #: Its name in the file.
    name: str
    #: The whole tensor's shape.
    shape: tuple[int, ...]
    #: The part that is read, by dimension; empty: all of it.
    index: tuple[slice, ...] = ()


def list_weights(folder: Path) -> dict[str, StoredTensor]:
    """The tensors of a model folder's text model by name, from the files' headers alone. Raises ModelRejected.

    The text model of one that also sees images is named as if it stood alone, and the tensors for images are left out.
    """
    stored = {name: stored for path in weight_files(folder) for name, stored in _list_file(path)}
    if not any(name.startswith(_TEXT_PREFIXES) for name in stored):
        return stored
    return {_text_name(name): tensor for name, tensor in stored.items() if not name.startswith(_IMAGE_PREFIXES)}


def _text_name(name: str) -> str:
    """Without the name of the wrapper's text model, which is the outer or the inner one."""
    return name.replace("model.language_model.", "model.", 1).removeprefix("language_model.")


def read_weights(stored: Mapping[Key, StoredTensor]) -> Iterator[tuple[Key, Tensor]]:
    """Yields the tensors one by one, file by file, as they are stored, in memory mapped from the file.

    Where only a part of a tensor is wanted, only that part's pages are read from the disk.

    Raises ModelRejected if a file can't be read.
    """
    for path in dict.fromkeys(tensor.path for tensor in stored.values()):
        with _naming(path), safe_open(path, framework="pt") as file:
            for key, tensor in stored.items():
                if tensor.path == path:
                    whole = file.get_slice(tensor.name) if tensor.index else file.get_tensor(tensor.name)
                    yield key, whole[tensor.index] if tensor.index else whole


def _list_file(path: Path) -> Iterator[tuple[str, StoredTensor]]:
    with _naming(path), safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118  (not a dict: it can't be iterated)
            tensor = file.get_slice(name)
            if tensor.get_dtype() not in _DTYPES:
                message = f"{path}: tensor `{name}` is of {tensor.get_dtype()}; only {', '.join(_DTYPES)} are read"
                raise ModelRejected(message, param=name)
            yield name, StoredTensor(path, name, tuple(tensor.get_shape()))


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise ModelRejected(f"{path} can't be read as safetensors: {error}", param=path.name) from error
