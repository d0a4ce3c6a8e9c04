"""Messages for settings that pydantic refuses. All mistakes are listed; a misspelt key comes with the nearest one."""

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from punica_serve.config.pydantic_errors import UNKNOWN
from punica_serve.errors.shortened import shortened
from punica_serve.numbers import limit

#: Longer values would hide the message itself.
_MAX_SHOWN_CHARS = 100

#: Constants that look like settings -> the message about them.
_CONSTANTS = dict.fromkeys(
    ("runner.restart_backoff_s", "runner.restart_backoff_max_s"),
    "is not a setting: a dead worker restarts after 0.5 s, doubled at every death up to 30 s; remove this line",
)

#: Values below these keys may be secret and are never shown.
_SECRETIVE = frozenset({"options", "credentials"})
_PASSWORD = re.compile(r"(?<=://)([^\s/:@]*):[^\s/@]*@")

#: Pydantic's error type -> what the value must be, in plain words. Other types keep pydantic's message.
_MUST_BE = {
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "finite_number": "a finite number",
    "float_type": "a number",
    "greater_than": "more than {gt}",
    "greater_than_equal": "{ge} or more",
    "int_from_float": "a whole number",
    "int_type": "a whole number",
    "less_than": "less than {lt}",
    "less_than_equal": "{le} or less",
    "list_type": "a list",
    "literal_error": "{expected}",
    "model_type": "a mapping",
    "multiple_of": "a multiple of {multiple_of}",
    "path_type": "a path",
    "string_too_short": "a non-empty string",
    "string_type": "a text",
    "too_long": "a list of at most {max_length}",
    "too_short": "a non-empty list",
    "tuple_type": "a list",
}


def mistakes_in(model: type[BaseModel], error: ValidationError) -> list[tuple[str, str]]:
    """The mistakes, as (key, message) pairs; the key is empty where sections contradict each other.

    Unknown keys come first: when a key is missing, it is usually because it is misspelt.
    """
    errors = sorted(error.errors(), key=lambda one: one["type"] != UNKNOWN)
    # For a list with wrong items pydantic also reports "too short"; that is not a separate mistake.
    above = {one["loc"][:depth] for one in errors for depth in range(len(one["loc"]))}
    return [(_key(one["loc"]), _message(model, one)) for one in errors if one["loc"] not in above]


def _key(loc: Sequence[int | str]) -> str:
    return ".".join(str(part) for part in loc)


def _message(model: type[BaseModel], error: Mapping[str, Any]) -> str:
    if error["type"] == "missing":
        return "is missing"
    if error["type"] != UNKNOWN:
        return f"{_wrong(error)}{_got(error)}"
    if (constant := _CONSTANTS.get(_key(error["loc"]))) is not None:
        return constant
    *above, unknown = error["loc"]
    near = get_close_matches(str(unknown), _keys_at(model, above), n=1)
    return "is not a known setting" + (f"; did you mean `{_key([*above, near[0]])}`?" if near else "")


def _wrong(error: Mapping[str, Any]) -> str:
    if error["type"] in _MUST_BE:
        limits = {name: limit(value) for name, value in error.get("ctx", {}).items()}
        return f"must be {_MUST_BE[error['type']].format(**limits)}"
    return str(error["msg"]).removeprefix("Value error, ")


def _keys_at(model: type[BaseModel], loc: Sequence[int | str]) -> list[str]:
    """The settings available below a key. Only a field's name leads to another model."""
    for part in loc:
        if part in model.model_fields:
            model = next(_models_of(model.model_fields[str(part)].annotation), model)
    return list(model.model_fields)


def _models_of(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_of(argument)


def _got(error: Mapping[str, Any]) -> str:
    """The wrong value, if there is one that may be shown.

    A section whose settings contradict each other is not: the message names them, and others in it may be secret.
    """
    is_section = error["type"] == "value_error" and isinstance(error["input"], Mapping)
    if is_section or not _SECRETIVE.isdisjoint(error["loc"]):
        return ""
    return f", got {_shown(error['input'])}"


def _shown(value: object) -> str:
    text = _PASSWORD.sub(r"\1:***@", repr(value))
    return shortened(text, _MAX_SHOWN_CHARS)
