"""Which files of a Hugging Face folder hold the weights. Free of torch: a folder can be checked before a start."""

import json
from pathlib import Path

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
