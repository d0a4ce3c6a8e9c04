"""Reads the weights of a Hugging Face folder: one safetensors file, or several with an index."""

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from punica_serve.errors import ModelRejected

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder, in a fixed order. Raises ModelRejected if there are none."""
    if (folder / _SINGLE).is_file():
        return [folder / _SINGLE]
    index = folder / _INDEX
    if not index.is_file():
        raise ModelRejected(f"{folder} has neither {_SINGLE} nor {_INDEX}; only safetensors weights are read")
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise ModelRejected(f"{index} is no index of safetensors files: {error!r}", param=_INDEX) from error
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise ModelRejected(f"{index} names {missing[0]}, which is not in {folder}", param=missing[0])
    return [folder / name for name in names]


def read_weights(folder: Path, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    """All tensors of a model folder by name, converted to ``dtype`` one by one. Raises ModelRejected."""
    return {name: tensor.to(device, dtype) for path in weight_files(folder) for name, tensor in _tensors_of(path)}


def _tensors_of(path: Path) -> Iterator[tuple[str, Tensor]]:
    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  (not a dict: it can't be iterated)
                yield name, file.get_tensor(name)
    except (OSError, SafetensorError) as error:
        raise ModelRejected(f"{path} can't be read as safetensors: {error}", param=path.name) from error
