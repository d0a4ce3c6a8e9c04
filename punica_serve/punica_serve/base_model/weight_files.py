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
#: Ends of the names of weights that are not read.
_OTHER_FORMATS = (".bin", ".pt", ".pth", ".gguf")


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
            message = f"{folder / _INDEX} names {name!r}, which {_absence(folder / name)}; download that file"
            raise ModelFileMissing(message, param=name)
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
        raise ModelFileMissing(_told_lack(folder), param=_SINGLE)
    names = sorted(set(convert(read_object(index), _Index, index).weight_map.values()))
    for name in names:
        _check_name(name, folder)
    return names


def _absence(path: Path) -> str:
    """Why a path is no file, to go on with after its name."""
    if os.path.isdir(path):
        return "is a folder, not a file"
    return "is a link to a file that is not there" if os.path.islink(path) else f"is not in {path.parent}"


def _told_lack(folder: Path) -> str:
    """Says what a folder lacks of its weights, and what to do."""
    for path in (folder / _SINGLE, folder / _INDEX):
        if os.path.lexists(path):
            return f"{path} {_absence(path)}; download it in its place"
    names = sorted(os.listdir(folder)) if os.access(folder, os.R_OK) else []
    if shard := next((name for name in names if name.endswith(".safetensors")), None):
        return f"{folder} has {shard} and no {_INDEX}, which says what is in each file; download that too"
    lack = f"{folder} has neither {_SINGLE} nor {_INDEX}; only safetensors weights are read"
    if other := next((name for name in names if name.endswith(_OTHER_FORMATS)), None):
        return f"{lack}, not {other}: download those, or convert it by `save_pretrained` of transformers"
    return f"{lack}: download them"


def _check_name(name: str, folder: Path) -> None:
    """Names are relative to the folder and stay in it; what they name may be a link, as in the Hub's cache."""
    path = PurePath(name)
    if path.is_absolute() or ".." in path.parts:
        raise ModelRejected(f"{folder / _INDEX} names {name!r}, which is outside of {folder}", param=name)
