"""A model that is given as an option: a mistake is told by the option, not by the setting that it becomes."""

import os
from pathlib import Path

from punica_serve.errors import ConfigError

_SHAPE = "shape:"


def check_given_model(what: str, given: str, folder: Path, *, takes_shapes: bool) -> None:
    """Raises ConfigError, which names ``what`` was given, unless a model may be in this folder."""
    if not given:
        wrong = "names nothing"
    elif given.startswith(_SHAPE) and not takes_shapes:
        wrong = f"{given} is a shape, without weights to serve"
    elif not os.path.isdir(folder):  # Path's own raises for a name that is too long, or a folder that is closed
        wrong = f"{given}: there is no such {'shape' if given.startswith(_SHAPE) else 'folder'}"
    elif not os.path.exists(folder / "config.json"):
        wrong = f"{given}: the folder has no config.json"
    else:
        return
    raise ConfigError(f"{what} {wrong}; give {_choices(takes_shapes=takes_shapes)}", param="model")


def _choices(*, takes_shapes: bool) -> str:
    from punica_serve.shapes import SHAPE_NAMES

    choices = "a folder on this machine in Hugging Face's format, or demo:model"
    return f"{choices}, or shape: with one of {', '.join(SHAPE_NAMES)}" if takes_shapes else choices
