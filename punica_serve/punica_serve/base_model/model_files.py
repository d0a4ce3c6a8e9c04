"""The JSON files of a Hugging Face model folder, checked field by field. Free of torch.

They are read with Python's parser, since Python may have written them: a NaN is then refused by its field, not as
broken JSON.
"""

import json
import re
import sys
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from punica_serve.errors import ModelRejected
from punica_serve.learned_types import learned

T = TypeVar("T")

#: Types of checked fields. A float must be finite.
PositiveInt = Annotated[int, msgspec.Meta(ge=1)]
PositiveFloat = Annotated[float, msgspec.Meta(gt=0, le=sys.float_info.max)]

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
    """An object of the file as a ``kind``, a msgspec struct or a dataclass; unknown fields are ignored.

    ``within`` is the field that holds the object. Raises ModelRejected, which names the file and the field.
    """
    try:
        return msgspec.convert(document, learned(kind))
    except msgspec.ValidationError as error:
        field, reason = _field_and_reason(str(error))
        raise refusal(path, f"{within}.{field}" if within else field, reason) from error
    except UnicodeEncodeError as error:  # JSON escapes can encode lone surrogates
        raise ModelRejected(f"{path} holds text that is not Unicode: {error}", param=path.name) from error


def refusal(path: Path, field: str, reason: str) -> ModelRejected:
    """The error about a field of a file."""
    return ModelRejected(f"{path}: `{field}` {reason}", param=field)


def _field_and_reason(message: str) -> tuple[str, str]:
    """Splits a message of msgspec, such as "Expected `int`, got `str` - at `$.eos_token_id[1]`"."""
    reason, _, place = message.partition(" - at `$.")
    missing = _MISSING.fullmatch(reason)
    return (missing["field"], "is missing") if missing else (place.rstrip("`"), f"is not valid: {reason}")
