from typing import Any

import pytest

from punica_frontend.fields.neutral_values import asks_for_nothing

NEUTRAL = {"count": (1,), "off": (0,), "on": (True,), "format": ({"type": "text"},)}


def is_left_out(value: Any, name: str = "made_up") -> bool:
    return asks_for_nothing(name, value, NEUTRAL)


@pytest.mark.parametrize("value", [None, False, "", [], {}, {"a": None}, {"a": {"b": [], "c": False}}, {"count": 1}])
def test_nothing_is_asked_for(value: Any) -> None:
    assert is_left_out(value)


@pytest.mark.parametrize("value", [True, 0, 0.0, 1, "a", [None], {"a": 0}, {"a": {"b": "c"}}, {"a": None, "b": 1}])
def test_something_is_asked_for(value: Any) -> None:
    assert not is_left_out(value)


def test_neutral_values_are_compared_as_json() -> None:
    assert is_left_out(1.0, "count") and is_left_out(0.0, "off") and is_left_out(True, "on")
    assert not is_left_out(True, "count") and not is_left_out(1, "on")
    assert is_left_out({"type": "text", "json_schema": None}, "format")
    assert not is_left_out({"type": "json_object"}, "format")


def test_false_switches_off_what_is_on_by_itself() -> None:
    assert not is_left_out(False, "on") and not is_left_out({"on": False}) and is_left_out(None, "on")


def test_members_of_an_object_that_is_a_templates_are_not_judged() -> None:
    assert not is_left_out({"enable_thinking": False}, "chat_template_kwargs")
    assert not is_left_out({"chat_template_kwargs": {"enable_thinking": False}})
    assert is_left_out({}, "chat_template_kwargs")


def test_very_deep_or_large_values_are_not_searched() -> None:
    deep: Any = None
    for _ in range(500):
        deep = {"a": deep}
    assert not is_left_out(deep)
    assert not is_left_out({str(number): None for number in range(257)})
