"""Options whose values are in the environment, or in a file that a service manager provides."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from punica_serve.config.store_section import StoreConfig
from punica_serve.errors import ConfigError
from punica_serve.errors.reasons import reason_of


def check_secrets(store: StoreConfig) -> None:
    """Reads every secret that the config refers to, as this process would. Raises ConfigError."""
    resolved(store.options, "store.options")
    for prefix, options in store.sources.credentials.items():
        resolved(options, f"store.sources.credentials.{prefix}")


def resolved(options: Mapping[str, Any], setting: str = "store") -> dict[str, Any]:
    """The options, with every {env: NAME} and {file: PATH} replaced. Raises ConfigError, which names the setting."""
    return {name: _value(value, setting) for name, value in options.items()}


def _value(value: Any, setting: str) -> Any:
    if not isinstance(value, Mapping):
        return value
    if value.keys() == {"env"}:
        return _variable(value["env"], setting)
    if value.keys() == {"file"}:
        return _content(Path(value["file"]), setting)
    return resolved(value, setting)


def _variable(name: str, setting: str) -> str:
    try:
        return os.environ[name]
    except KeyError:
        raise ConfigError(
            f"`{setting}` needs the environment variable {name}, which is not set; set it", param=setting
        ) from None


def _content(path: Path, setting: str) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"`{setting}` needs the file {path}, which can't be read: {reason_of(error)}", param=setting
        ) from error
