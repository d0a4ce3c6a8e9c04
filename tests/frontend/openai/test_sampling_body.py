"""OpenAI's bodies become native fields unchecked, so they must have been checked as those are."""

from types import NoneType
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from punica_frontend.api.schemas import GenerateFields
from punica_frontend.openai.chat_body import ChatBody
from punica_frontend.openai.completion_body import CompletionBody

#: They are brought into the native range: signed seeds, and -1 for all tokens.
_CONVERTED = {"seed", "top_k"}
_NATIVE = CompletionBody.model_construct(prompt=[]).native_fields().keys() - _CONVERTED | {"max_tokens"}


@pytest.mark.parametrize("body", [CompletionBody, ChatBody])
@pytest.mark.parametrize("name", sorted(_NATIVE))
def test_a_field_is_checked_as_the_native_one_that_it_becomes(body: type[BaseModel], name: str) -> None:
    assert _checks(body, name) == _checks(GenerateFields, name)


@pytest.mark.parametrize("body", [CompletionBody, ChatBody])
def test_types_are_as_strict_as_the_native_ones(body: type[BaseModel]) -> None:
    native = GenerateFields.model_config
    for setting in ("strict", "allow_inf_nan"):
        assert body.model_config.get(setting) == native.get(setting)


@pytest.mark.parametrize(
    "values", [{"seed": -(1 << 63), "top_k": -1}, {"seed": -1, "top_k": 0}, {"seed": (1 << 64) - 1, "top_k": 1}]
)
def test_a_field_that_is_converted_is_in_the_native_range(values: dict[str, int]) -> None:
    body = CompletionBody.model_validate({"prompt": "42", **values})
    native = body.native_fields()
    assert GenerateFields.model_validate(native).model_dump(include=_CONVERTED) == {
        name: native[name] for name in _CONVERTED
    }


def _checks(body: type[BaseModel], name: str) -> tuple[list[Any], list[Any]]:
    """A field's types but for null, and its constraints."""
    field = body.model_fields[name]
    types = [each for each in get_args(field.annotation) if each is not NoneType]
    return types if NoneType in get_args(field.annotation) else [field.annotation], field.metadata
