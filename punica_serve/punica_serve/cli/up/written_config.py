"""The config file that `up --model` writes, so that one line serves a model.

It lies in the data folder, under a name that its content decides: the same line uses the same file again, and whoever
needs more settings copies it.
"""

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml

from punica_serve.adapters.adapter_limits import limit_settings
from punica_serve.config.cluster import ClusterConfig, parse_config
from punica_serve.config.fields import is_packaged
from punica_serve.errors import ConfigError

_SOURCE = "the options of `up`"
_HEADING = (
    "# Written by `punica-serve up --model`. Copy it to change more settings; `up --config FILE` reads the copy.\n"
)


@dataclass(frozen=True, slots=True)
class WrittenConfig:
    """A config file that is not written yet, so that one which is refused leaves no file."""

    path: Path
    text: str
    #: The text, parsed.
    config: ClusterConfig

    def write(self) -> None:
        """Raises ConfigError if the file can't be written."""
        try:
            _replace(self.path, self.text)
        except OSError as error:
            message = f"{self.path} can't be written: {error.strerror}; set XDG_DATA_HOME"
            raise ConfigError(message, param="model") from error


def config_for(model: str, adapters: Sequence[str], devices: Sequence[str]) -> WrittenConfig:
    """The config for a model folder, ``NAME=FOLDER`` adapters and devices. Raises ConfigError."""
    # Several such servers run side by side on a host: each scheduler takes a free port.
    document: dict[str, Any] = {"engine": {"model": _absolute(model, "model")}, "scheduler": {"port": 0}}
    if adapters:
        document["adapters"] = _adapters(adapters)
    if devices:
        document["runner"] = {"devices": list(devices)}
    config = parse_config(document, source=_SOURCE, folder=Path.cwd())
    document["engine"] |= limit_settings(config.adapters.values())
    text = _HEADING + yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    path = config.data_folder / "up" / f"{sha256(text.encode()).hexdigest()[:16]}.yaml"
    return WrittenConfig(path, text, parse_config(yaml.safe_load(text), source=_SOURCE, folder=path.parent))


def _adapters(given: Sequence[str]) -> dict[str, str]:
    folders: dict[str, str] = {}
    for each in given:
        name, separator, folder = each.partition("=")
        if not (name and separator and folder):
            raise ConfigError(f"`--adapter` {each!r} is not NAME=FOLDER", param="adapter")
        if name in folders:
            raise ConfigError(f"`--adapter` names {name!r} twice", param="adapter")
        folders[name] = _absolute(folder, "adapter")
    return folders


def _absolute(folder: str, option: str) -> str:
    """The file lies elsewhere, so its folders are absolute; `demo:` and `shape:` names stay as they are.

    Raises ConfigError, about this option.
    """
    if is_packaged(folder):
        return folder
    try:
        return str(Path(folder).expanduser().absolute())
    except RuntimeError as error:
        raise ConfigError(f"`--{option}` {folder}: no such user is on this machine", param=option) from error


def _replace(path: Path, text: str) -> None:
    """Writes the file atomically, also beside others that write the same one."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".up-")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(name, path)
