"""Copies of the base model's embedding and head that PEFT saves beside their updates: they must be what they copy.

PEFT would put a copy in the place of the base's own matrix, so an adapter whose copy differs trained that, too.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from punica_serve.adapters.adapter import HostTensor, TensorPlace
from punica_serve.adapters.safetensors_file import list_tensors, read_header
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.base_model.weight_files import weight_files
from punica_serve.errors import AdapterRejected, ModelRejected

#: Numbers compared at a time.
_BLOCK = 1 << 20
#: The base's tensors by the end of their names, as models alone and in wrappers write them; a head may be tied.
_STORED = {"embed_tokens": ("embed_tokens.weight",), "lm_head": ("lm_head.weight", "embed_tokens.weight")}
_ADVICE = "save the adapter again by save_pretrained(..., save_embedding_layers=False)"


def check_base_copies(weights: Path, copies: Mapping[str, tuple[str, TensorPlace]], model: ModelConfig) -> None:
    """``copies``: the names and places in the file ``weights`` of the copies of embed_tokens and lm_head, by module.

    Blocks while both are read. Raises AdapterRejected if one is not equal to the base's, or the base is not there.
    """
    for module, (name, copy) in copies.items():
        base = _base_tensor(module, model)
        if base is None:
            reason = "and the base model's weights are not on this machine to compare it with"
            raise _refusal(name, module, f"{reason}; {_ADVICE}")
        path, place = base
        if place.shape != copy.shape:
            sizes = f"but has shape {list(copy.shape)}, and the base model's has {list(place.shape)}"
            raise _refusal(name, module, f"{sizes}: adapters of a vocabulary of another size are not served")
        if not _are_equal(_memory(weights), copy, _memory(path), place):
            raise _refusal(name, module, "but differs from it: such trained weights are not served")


def _refusal(name: str, module: str, reason: str) -> AdapterRejected:
    return AdapterRejected(f"tensor `{name}` is a copy of the base model's {module}, {reason}", param=name)


def _base_tensor(module: str, model: ModelConfig) -> tuple[Path, TensorPlace] | None:
    """None: the folder has none that can be read."""
    if model.folder is None:
        return None
    try:
        stored = dict(_stored(model.folder))
    except (OSError, ModelRejected, AdapterRejected):
        return None
    ends = _STORED[module]
    return next((found for end in ends for name, found in stored.items() if name.endswith(end)), None)


def _stored(folder: Path) -> Iterator[tuple[str, tuple[Path, TensorPlace]]]:
    for path in weight_files(folder):
        with path.open("rb") as file:
            num_bytes = path.stat().st_size
            tensors = list_tensors(read_header(file, num_bytes), num_bytes)
        yield from ((name, (path, place)) for name, place in tensors.items())


def _memory(path: Path) -> npt.NDArray[np.uint8]:
    return np.memmap(path, dtype=np.uint8, mode="r")


def _are_equal(file: npt.NDArray[np.uint8], a: TensorPlace, other: npt.NDArray[np.uint8], b: TensorPlace) -> bool:
    count = int(np.prod(a.shape))
    return all(
        np.array_equal(_block(file, a, start, count), _block(other, b, start, count))
        for start in range(0, count, _BLOCK)
    )


def _block(file: npt.NDArray[np.uint8], place: TensorPlace, start: int, count: int) -> npt.NDArray[np.float32]:
    """Numbers of a tensor, which bfloat16 and float16 represent exactly in float32."""
    size = (place.end - place.begin) // count
    end = min(start + _BLOCK, count)
    part = TensorPlace(place.dtype, (end - start,), place.begin + start * size, place.begin + end * size)
    found: HostTensor = part.of(file)
    return found.float32()
