"""The weight files of a Hugging Face folder. Free of torch, so that a folder can be checked before the start."""

import os
from pathlib import Path, PurePath
from typing import Annotated

import msgspec

from punica_serve.base_model.model_files import convert, read_object
from punica_serve.errors import ModelRejected
from punica_serve.errors.reasons import why_unreadable

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"


class _Index(msgspec.Struct, frozen=True):
    #: Tensor -> file.
    weight_map: Annotated[dict[str, str], msgspec.Meta(min_length=1)]


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder, in a fixed order. Raises ModelRejected for none, or an unreadable one."""
    files = _files_of(folder)
    # Checked here, since safetensors reports a file without read permission as missing.
    for file in files:
        if why := why_unreadable(file):
            raise ModelRejected(f"{file} can't be read: {why}", param=file.name)
    return files


def _files_of(folder: Path) -> list[Path]:
    if os.path.isfile(folder / _SINGLE):
        return [folder / _SINGLE]
    index = folder / _INDEX
    if not os.path.isfile(index):
        raise ModelRejected(f"{folder} has neither {_SINGLE} nor {_INDEX}; only safetensors weights are read")
    names = sorted(set(convert(read_object(index), _Index, index).weight_map.values()))
    for name in names:
        _check_name(name, folder)
    return [folder / name for name in names]


def _check_name(name: str, folder: Path) -> None:
    """Names are relative to the folder and stay in it; what they name may be a link, as in the Hub's cache."""
    path = PurePath(name)
    if path.is_absolute() or ".." in path.parts:
        raise ModelRejected(f"{folder / _INDEX} names {name!r}, which is outside of {folder}", param=name)
    if not os.path.isfile(folder / name):
        raise ModelRejected(f"{folder / _INDEX} names {name!r}, which is not in {folder}", param=name)
