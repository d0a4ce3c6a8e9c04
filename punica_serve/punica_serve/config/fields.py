"""Building blocks of config files: a frozen base class and strict types of values."""

from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, ValidationInfo

from punica_serve.config.device_groups import why_no_device
from punica_serve.numbers import MAX_COUNT, MAX_INT64

#: Prefixes of folders that ship with the package, and the packages that hold them.
_PACKAGES = {"demo:": "punica_serve.demo", "shape:": "punica_serve.shapes"}


def _refuse_empty(folder: Any) -> Any:
    """Refuses an empty path, which would otherwise mean the config file's own folder."""
    if folder == "":
        raise ValueError("must not be empty")
    return folder


def resolve_folder(path: Path, info: ValidationInfo) -> Path:
    """Resolves a path relative to the config file. Raises ValueError."""
    return folder_at(path, info.context["folder"] if info.context else Path.cwd())


def folder_at(path: Path, base: Path) -> Path:
    """The folder of a path, relative to ``base`` if it is not absolute, or of a ``demo:`` or ``shape:`` name.

    Raises ValueError.
    """
    for prefix, package in _PACKAGES.items():
        if str(path).startswith(prefix):
            return Path(str(files(package))) / str(path).removeprefix(prefix)
    try:
        return Path(base / path.expanduser()).resolve()
    except RuntimeError as error:  # no such user, or a loop of symbolic links
        raise ValueError(str(error)) from error


def is_packaged(path: str) -> bool:
    """Whether it names a folder that ships with the package, and so is no path."""
    return path.startswith(tuple(_PACKAGES))


def _resolve_file(name: str, info: ValidationInfo) -> str:
    return str(resolve_folder(Path(name), info)) if name.endswith((".yaml", ".yml")) else name


def _refuse_unknown_device(name: str) -> str:
    """Checks only the form: each host finds out at startup whether it has the device."""
    if reason := why_no_device(name):
        raise ValueError(reason)
    return name


def _read_auto(value: Any) -> Any:
    if value == "auto":
        return None
    if value is not None and type(value) is not int:
        raise ValueError("must be a whole number, or auto")
    return value


#: A folder; relative paths become absolute when the file is read.
Folder = Annotated[Path, BeforeValidator(_refuse_empty), AfterValidator(resolve_folder)]

#: A file, made absolute in the same way.
File = Folder

# A string, checked strictly: YAML distinguishes numbers, strings and booleans, so a wrong type is a mistake.
Name = Annotated[str, Field(min_length=1)]
#: A name, kept as it is, or a YAML file, made absolute.
NameOrFile = Annotated[Name, AfterValidator(_resolve_file)]
#: A worker's device.
Device = Annotated[str, AfterValidator(_refuse_unknown_device)]
Flag = Annotated[bool, Field(strict=True)]
Port = Annotated[int, Field(strict=True, ge=0, le=65535)]
PositiveInt = Annotated[int, Field(strict=True, ge=1, le=MAX_INT64)]
#: A number of pages, rows or tokens: the tables of a step hold int32.
Int32 = Annotated[int, Field(strict=True, ge=1, le=MAX_COUNT)]
#: The same, or `auto`, which is None.
AutoInt32 = Annotated[Int32 | None, BeforeValidator(_read_auto)]
#: `max_batch_size: auto`, until a runner takes a size for it. Not None: nearly all code reads the size that was taken.
AUTO_BATCH = 0


def _read_batch_size(value: Any) -> Any:
    if value == "auto":
        return AUTO_BATCH
    if type(value) is not int or value < 1:
        raise ValueError("must be a whole number of 1 or more, or auto")
    return value


#: Requests in a step, or `auto`.
BatchSize = Annotated[
    int,
    Field(strict=True, ge=0, le=MAX_COUNT),
    BeforeValidator(_read_batch_size),
    PlainSerializer(lambda size: "auto" if size == AUTO_BATCH else size),
]
NonNegativeInt = Annotated[int, Field(strict=True, ge=0, le=MAX_INT64)]
#: The same, or `auto`, which is None.
AutoNonNegativeInt = Annotated[NonNegativeInt | None, BeforeValidator(_read_auto)]
#: Thirty years are as good as no limit, and every clock and event loop can wait for them.
_MAX_S = 1e9
Seconds = Annotated[float, Field(strict=True, gt=0, le=_MAX_S)]
SecondsOrZero = Annotated[float, Field(strict=True, ge=0, le=_MAX_S)]
NonNegative = Annotated[float, Field(strict=True, ge=0)]


class ConfigModel(BaseModel):
    """A section of a config file: frozen, with known keys only, without NaN and infinity. Fields that may hold a secret
    are left out of its repr.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
