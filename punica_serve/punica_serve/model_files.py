"""The JSON files of a Hugging Face model folder, checked field by field. Free of torch.

Python's parser reads them, since Python may have written them: its NaN is then refused by field, not as broken JSON.
"""

import json
import re
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from punica_serve.errors import ModelRejected

T = TypeVar("T")

_MISSING = re.compile(r"Object missing required field `(?P<field>\w+)`")


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises ModelRejected, which names the file."""
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelRejected(f"{path} can't be read: {error.strerror}", param=path.name) from error
    except (ValueError, RecursionError) as error:
        raise ModelRejected(f"{path} is not JSON: {error}", param=path.name) from error
    if not isinstance(document, dict):
        raise ModelRejected(f"{path} must hold a JSON object", param=path.name)
    return document


def convert(document: dict[str, Any], kind: type[T], path: Path, *, within: str = "") -> T:
    """An object of the file as a ``kind``, a msgspec struct or a dataclass; fields that it lacks are ignored.

    ``within`` is the field that holds the object. Raises ModelRejected, which names the file and the field.
    """
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        field, reason = _field_and_reason(str(error))
        raise refusal(path, f"{within}.{field}" if within else field, reason) from error
    except UnicodeEncodeError as error:  # JSON's escapes can spell half characters
        raise ModelRejected(f"{path} holds text that is no Unicode: {error}", param=path.name) from error


def refusal(path: Path, field: str, reason: str) -> ModelRejected:
    """The error for a field of a file."""
    return ModelRejected(f"{path}: `{field}` {reason}", param=field)


def _field_and_reason(message: str) -> tuple[str, str]:
    """Takes a message of msgspec apart, such as "Expected `int`, got `str` - at `$.eos_token_id[1]`"."""
    reason, _, place = message.partition(" - at `$.")
    missing = _MISSING.fullmatch(reason)
    return (missing["field"], "is missing") if missing else (place.rstrip("`"), f"is not valid: {reason}")
