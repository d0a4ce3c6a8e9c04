"""Reads the weights of a Hugging Face folder: one safetensors file, or several with an index."""

from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from punica_serve.errors import ModelRejected
from punica_serve.weight_files import weight_files

#: The others are quantized weights, or none: they mean nothing without what they were quantized by.
_DTYPES = ("F32", "F16", "BF16")


def read_weights(folder: Path, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    """All tensors of a model folder by name, converted to ``dtype`` one by one. Raises ModelRejected."""
    return {name: tensor.to(device, dtype) for path in weight_files(folder) for name, tensor in _tensors_of(path)}


def _tensors_of(path: Path) -> Iterator[tuple[str, Tensor]]:
    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  (not a dict: it can't be iterated)
                stored = file.get_slice(name).get_dtype()
                if stored not in _DTYPES:
                    message = f"{path}: tensor `{name}` is of {stored}; only {', '.join(_DTYPES)} are read"
                    raise ModelRejected(message, param=name)
                yield name, file.get_tensor(name)
    except (OSError, SafetensorError) as error:
        raise ModelRejected(f"{path} can't be read as safetensors: {error}", param=path.name) from error
