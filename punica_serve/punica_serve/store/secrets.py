"""Options whose values are in the environment, or in a file that a service manager provides."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from punica_serve.errors import ConfigError
from punica_serve.errors.reasons import reason_of


def resolved(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options, with every {env: NAME} and {file: PATH} replaced. Raises ConfigError."""
    return {name: _value(value) for name, value in options.items()}


def _value(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    if value.keys() == {"env"}:
        return _variable(value["env"])
    if value.keys() == {"file"}:
        return _content(Path(value["file"]))
    return resolved(value)


def _variable(name: str) -> str:
    try:
        return os.environ[name]
    except KeyError:
        raise ConfigError(
            f"`store` needs the environment variable {name}, which is not set; set it", param="store"
        ) from None


def _content(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"`store` needs the file {path}, which can't be read: {reason_of(error)}", param="store"
        ) from error
