"""The page says of a body's fields what its check says."""

from typing import Any

import jsonschema_rs
import pytest

from punica_frontend.fields.lists import HINTS, MESSAGE_HINTS
from punica_frontend.fields.unknown import unknown_fields
from punica_frontend.openai.chat_body import ChatBody

PAGE = jsonschema_rs.Draft202012Validator(ChatBody.model_json_schema())
HELLO = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    "fields",
    [
        dict.fromkeys(HINTS, "x"),
        {"messages": [HELLO | dict.fromkeys(MESSAGE_HINTS, "x")]},
        {"tools": [], "stop": "", "logit_bias": {}, "made_up": {"a": None}, "temperature": False, "n": None},
    ],
)
def test_accepted_bodies(fields: dict[str, Any]) -> None:
    body = {"messages": [HELLO]} | fields
    assert PAGE.is_valid(body)
    assert not list(unknown_fields(ChatBody.model_validate(body)))


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{}]},
        {"made_up": 0},
        {"messages": [HELLO | {"tool_call_id": "1"}]},
        {"stream": True, "stream_options": {"made_up": 1}},
    ],
)
def test_refused_bodies(fields: dict[str, Any]) -> None:
    body = {"messages": [HELLO]} | fields
    assert not PAGE.is_valid(body)
    assert list(unknown_fields(ChatBody.model_validate(body)))
