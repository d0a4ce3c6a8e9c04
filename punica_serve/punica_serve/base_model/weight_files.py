"""The weight files of a Hugging Face folder. Free of torch, so that a folder can be checked before the start."""

import os
from pathlib import Path, PurePath
from typing import Annotated

import msgspec

from punica_serve.base_model.model_files import convert, read_object
from punica_serve.errors import ModelFileMissing, ModelRejected
from punica_serve.errors.reasons import why_unreadable

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"


class _Index(msgspec.Struct, frozen=True):
    #: Tensor -> file.
    weight_map: Annotated[dict[str, str], msgspec.Meta(min_length=1)]


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder, in a fixed order.

    Raises ModelFileMissing for one that is not there, and ModelRejected for one that can't be read.
    """
    names = _names(folder)
    for name in names:
        if not os.path.isfile(folder / name):
            raise ModelFileMissing(f"{folder / _INDEX} names {name!r}, which is not in {folder}", param=name)
    files = [folder / name for name in names]
    # Checked here, since safetensors reports a file without read permission as missing.
    for file in files:
        if why := why_unreadable(file):
            raise ModelRejected(f"{file} can't be read: {why}", param=file.name)
    return files


def named_files(folder: Path) -> list[Path]:
    """The files that hold a folder's weights, in a fixed order; those that an index names may still be missing.

    Raises ModelFileMissing if there is neither a file nor an index, and ModelRejected for a wrong index.
    """
    return [folder / name for name in _names(folder)]


def _names(folder: Path) -> list[str]:
    if os.path.isfile(folder / _SINGLE):
        return [_SINGLE]
    index = folder / _INDEX
    if not os.path.isfile(index):
        raise ModelFileMissing(f"{folder} has neither {_SINGLE} nor {_INDEX}; only safetensors weights are read")
    names = sorted(set(convert(read_object(index), _Index, index).weight_map.values()))
    for name in names:
        _check_name(name, folder)
    return names


def _check_name(name: str, folder: Path) -> None:
    """Names are relative to the folder and stay in it; what they name may be a link, as in the Hub's cache."""
    path = PurePath(name)
    if path.is_absolute() or ".." in path.parts:
        raise ModelRejected(f"{folder / _INDEX} names {name!r}, which is outside of {folder}", param=name)
