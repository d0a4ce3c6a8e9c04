"""Reads YAML files and checks them with a pydantic model. A mistake is a ConfigError that names file, key and fix."""

from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from punica_serve.config.messages import mistakes_in
from punica_serve.errors import ConfigError
from punica_serve.errors.plain_files import open_plain
from punica_serve.errors.reasons import reason_of

Model = TypeVar("Model", bound=BaseModel)

#: Far more than thousands of adapters need.
_MAX_BYTES = 16 << 20


class _UniqueKeyLoader(yaml.SafeLoader):
    """Refuses duplicate keys. YAML lets the last of them win, so an adapter would silently disappear."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        repeated = next((key for i, (key, _) in enumerate(node.value) if key.value in keys[:i]), None)
        if repeated is not None:
            raise yaml.constructor.ConstructorError(None, None, f"key {repeated.value!r} twice", repeated.start_mark)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path, *, what: str, example_key: str) -> dict[str, Any]:
    """The mapping in a file. Messages use ``what`` for the file and name ``example_key``, which it must have. Raises
    ConfigError.
    """
    try:
        with open_plain(path) as file:
            content = file.read(_MAX_BYTES + 1)
        text = content.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{what} {path.absolute()} can't be read: {reason_of(error)}", param=str(path)) from error
    if len(content) > _MAX_BYTES:
        raise ConfigError(f"{what} {path.absolute()} is larger than {_MAX_BYTES >> 20} MiB, the limit", param=str(path))
    try:
        document = yaml.load(text, _UniqueKeyLoader)
    # PyYAML also lets through errors from constructing a value, such as 2024-99-99 or 2000 nested brackets.
    except Exception as error:
        raise ConfigError(f"{what} {path} is not valid YAML: {_mistake(error)}", param=str(path)) from error
    if not isinstance(document, dict):
        raise ConfigError(f"{what} {path} must be a mapping with at least `{example_key}:`", param=str(path))
    return document


def validated(model: type[Model], document: dict[str, Any], *, source: str, folder: Path) -> Model:
    """Checks a mapping. Relative paths start from ``folder``.

    Raises ConfigError with one line per mistake; each names ``source``.
    """
    try:
        return model.model_validate(document, context={"folder": folder})
    except ValidationError as error:
        mistakes = mistakes_in(model, error)
        lines = (f"{source}: `{key}`: {message}" if key else f"{source}: {message}" for key, message in mistakes)
        raise ConfigError("\n".join(lines), param=mistakes[0][0]) from error


def _mistake(error: Exception) -> str:
    """The mistake in one line, with its position if PyYAML knows it."""
    if isinstance(error, yaml.MarkedYAMLError) and (mark := error.problem_mark):
        what = ", ".join(filter(None, [error.context, error.problem]))
        return f"line {mark.line + 1}, column {mark.column + 1}: {what}"
    if isinstance(error, yaml.reader.ReaderError):
        return f"character {error.position + 1}: {error.reason}"
    return "its values are nested too deeply" if isinstance(error, RecursionError) else str(error)
