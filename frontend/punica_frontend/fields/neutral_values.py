"""Values that ask for nothing: a field with such a value counts as left out."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import core_schema

from punica_frontend.fields.lists import FREE_FORM

#: The same as a JSON schema, as deep as it can be without recursion.
_EMPTY: dict[str, Any] = {"enum": [None, False, "", [], {}]}
NOTHING_SCHEMA = core_schema.any_schema(
    ref="Nothing",
    metadata={
        "pydantic_js_updates": {
            "description": "As if the field were left out.",
            "anyOf": [_EMPTY, {"type": "object", "additionalProperties": _EMPTY}],
        }
    },
)

#: Deeper and larger objects count as asking for something: searching them would delay other clients.
_MAX_DEPTH = 8
MAX_MEMBERS = 256


def is_nothing(value: Any) -> bool:
    """Whether the value is null, false, "", [] or {}. 0 means off only for some fields."""
    return value is False or (not value and not isinstance(value, int | float))


def asks_for_nothing(
    name: str, value: Any, neutral: Mapping[str, Sequence[Any]], *, max_depth: int = _MAX_DEPTH
) -> bool:
    """Whether a field with this value counts as left out. ``neutral`` lists neutral values by field name.

    An object does if all its members do, down to ``max_depth`` levels. If true is neutral for a field, it is on by
    default, and false asks for something.
    """
    own = neutral.get(name, ())
    if value is False and any(each is True for each in own):
        return False
    if type(value) is dict and value:
        if len(value) > MAX_MEMBERS or not max_depth or name in FREE_FORM:
            return False
        value = {
            member: each
            for member, each in value.items()
            if not asks_for_nothing(member, each, neutral, max_depth=max_depth - 1)
        }
    return is_nothing(value) or any(_is_same(value, each) for each in own)


def _is_same(value: Any, neutral: Any) -> bool:
    """Compares as JSON: 1 equals 1.0, but not true."""
    return bool(value == neutral) and isinstance(value, bool) == isinstance(neutral, bool)
