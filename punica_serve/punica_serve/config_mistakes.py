"""What a user is told of settings that pydantic refuses: every mistake, and of a misspelt key the nearest one."""

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from punica_serve.counted import limit
from punica_serve.mistakes import UNKNOWN

#: More of a wrong value would hide the message about it.
_MAX_SHOWN_CHARS = 100

#: What is below these keys may be secret, and is not shown.
_SECRETIVE = frozenset({"options", "credentials"})
_PASSWORD = re.compile(r"(?<=://)([^\s/:@]*):[^\s/@]*@")

#: What pydantic calls a wrong value -> what it must be, in the words of a file's reader; of others, pydantic's own.
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
    "path_type": "a path",
    "string_too_short": "a text that is not empty",
    "string_type": "a text",
    "too_short": "a list that is not empty",
    "tuple_type": "a list",
}


def mistakes_in(model: type[BaseModel], error: ValidationError) -> list[tuple[str, str]]:
    """Of each mistake the key and what to say of it.

    Unknown keys come first: where a key is missing, a misspelt one is most often what is wrong.
    """
    errors = sorted(error.errors(), key=lambda one: one["type"] != UNKNOWN)
    # A list whose items are wrong is also said to be too short: that is no mistake of its own.
    above = {one["loc"][:depth] for one in errors for depth in range(len(one["loc"]))}
    return [(_key(one["loc"]), _message(model, one)) for one in errors if one["loc"] not in above]


def _key(loc: Sequence[int | str]) -> str:
    return ".".join(str(part) for part in loc)


def _message(model: type[BaseModel], error: Mapping[str, Any]) -> str:
    if error["type"] == "missing":
        return "is missing"
    if error["type"] != UNKNOWN:
        return f"{_wrong(error)}{_got(error)}"
    *above, unknown = error["loc"]
    near = get_close_matches(str(unknown), _keys_at(model, above), n=1)
    return "there is no such setting" + (f"; did you mean `{_key([*above, near[0]])}`?" if near else "")


def _wrong(error: Mapping[str, Any]) -> str:
    if error["type"] in _MUST_BE:
        limits = {name: limit(value) for name, value in error.get("ctx", {}).items()}
        return f"must be {_MUST_BE[error['type']].format(**limits)}"
    return str(error["msg"]).removeprefix("Value error, ")


def _keys_at(model: type[BaseModel], loc: Sequence[int | str]) -> list[str]:
    """The settings that there are below a key: a field's name leads to its model; an index or a mapping's key stays."""
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
    """The wrong value, where there is one that may be shown."""
    if not _SECRETIVE.isdisjoint(error["loc"]):
        return ""
    return f", got {_shown(error['input'])}"


def _shown(value: object) -> str:
    text = _PASSWORD.sub(r"\1:***@", repr(value))
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]}..."
