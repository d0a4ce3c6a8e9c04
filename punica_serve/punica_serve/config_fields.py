"""What the settings in files are made of: a frozen base and strict kinds of values."""

import re
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo

from punica_serve.counted import MAX_COUNT

#: What a folder that comes with the package starts with, and where those are.
_PACKAGES = {"demo:": "punica_serve.demo", "shape:": "punica_serve.shapes"}


def _refuse_empty(folder: Any) -> Any:
    """An empty path would mean the folder of the file."""
    if folder == "":
        raise ValueError("must not be empty")
    return folder


def resolve_folder(path: Path, info: ValidationInfo) -> Path:
    """Relative to the file that is read. Raises ValueError."""
    for prefix, package in _PACKAGES.items():
        if str(path).startswith(prefix):
            return Path(str(files(package))) / str(path).removeprefix(prefix)
    base = info.context["folder"] if info.context else Path.cwd()
    try:
        return Path(base / path.expanduser()).resolve()
    except RuntimeError as error:  # no such user, or a loop of links
        raise ValueError(str(error)) from error


def _resolve_file(name: str, info: ValidationInfo) -> str:
    return str(resolve_folder(Path(name), info)) if name.endswith((".yaml", ".yml")) else name


def _refuse_unknown_device(name: str) -> str:
    """By its form: whether a host has the device is found out there, when it starts."""
    if not re.fullmatch(r"cpu|simulated|cuda:\d+", name):
        raise ValueError("a device is cpu, cuda:N, as in cuda:0, or simulated")
    return name


#: A folder, made absolute while the file is read.
Folder = Annotated[Path, BeforeValidator(_refuse_empty), AfterValidator(resolve_folder)]

#: A file, made absolute in the same way.
File = Folder

# Strict: YAML knows numbers, texts and booleans apart, so one in another's place is a mistake.
Name = Annotated[str, Field(min_length=1)]
#: A name as it is, or a YAML file, made absolute.
NameOrFile = Annotated[Name, AfterValidator(_resolve_file)]
#: Of a worker.
Device = Annotated[str, AfterValidator(_refuse_unknown_device)]
Flag = Annotated[bool, Field(strict=True)]
Port = Annotated[int, Field(strict=True, ge=0, le=65535)]
PositiveInt = Annotated[int, Field(strict=True, ge=1)]
#: How many pages, rows or tokens: a step's tables are of int32.
Int32 = Annotated[int, Field(strict=True, ge=1, le=MAX_COUNT)]
NonNegativeInt = Annotated[int, Field(strict=True, ge=0)]
Seconds = Annotated[float, Field(strict=True, gt=0)]
NonNegative = Annotated[float, Field(strict=True, ge=0)]


class ConfigModel(BaseModel):
    """A part of a file: frozen, of known keys alone, without NaN and infinity. What may hold a secret has no repr."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
