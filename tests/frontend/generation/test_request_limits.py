from typing import Any

import pytest

from punica_frontend.api.schemas import GenerateFields
from punica_frontend.generation.request_limits import answer_room
from punica_serve.errors import ContextOverflow, InvalidRequest
from punica_serve.protocol import Limits


def test_the_models_own_limit_is_for_requests_that_give_none() -> None:
    assert answer_room(GenerateFields(), 10, 64, None, default=7) == 7
    assert answer_room(GenerateFields(), 10, 64, None, default=70) == 54
    assert answer_room(GenerateFields(max_tokens=30), 10, 64, None, default=7) == 30
    assert answer_room(GenerateFields(min_tokens=20), 10, 64, None, default=7) == 20


def test_an_answer_may_fill_the_rest_of_what_holds_least() -> None:
    assert answer_room(GenerateFields(), 10, 64, None) == 54
    assert answer_room(GenerateFields(), 10, 64, Limits(0, None)) == 54
    assert answer_room(GenerateFields(), 10, 64, Limits(1, 1000)) == 54


def test_an_answer_of_no_given_length_fits_the_gpus_that_are_gone_for_now() -> None:
    """While all workers are restarted, or the scheduler: the request waits for one, and would be refused by it."""

    def room(fields: GenerateFields, num_prompt_tokens: int = 10) -> int:
        return answer_room(fields, num_prompt_tokens, 64, Limits(0, None), last_request_tokens=32, default=40)

    assert room(GenerateFields()) == 22
    assert room(GenerateFields(), num_prompt_tokens=40) == 24
    assert room(GenerateFields(min_tokens=30)) == 30, "those that come back may be larger"
    assert room(GenerateFields(max_tokens=50)) == 50
    assert answer_room(GenerateFields(), 10, 64, Limits(1, 32)) == 22
    assert answer_room(GenerateFields(max_tokens=22), 10, 64, Limits(1, 32)) == 22


@pytest.mark.parametrize(
    ("fields", "num_prompt_tokens", "limits", "param", "says"),
    [
        (
            {"prompt": ""},
            64,
            None,
            "prompt",
            "64 tokens, but this model's maximum context length is 64 tokens, including the",
        ),
        ({"input_ids": []}, 70, None, "input_ids", "70 tokens"),
        (
            {},
            40,
            Limits(1, 32),
            "prompt",
            "is 32 tokens here, as much as the cluster's largest KvCache holds, including the",
        ),
        ({"max_tokens": 55}, 10, None, "max_tokens", "maximum context length is 64 tokens, which leaves 54"),
        (
            {"max_tokens": 30},
            10,
            Limits(1, 32),
            "max_tokens",
            "cluster's largest KvCache holds, which leaves 22 after the prompt's 10 tokens$",
        ),
    ],
)
def test_too_long_a_request_is_refused_by_field(
    fields: dict[str, Any], num_prompt_tokens: int, limits: Limits | None, param: str, says: str
) -> None:
    with pytest.raises(ContextOverflow, match=says) as caught:
        answer_room(GenerateFields(**fields), num_prompt_tokens, 64, limits)
    assert caught.value.param == param


def test_more_tokens_at_least_than_at_most_are_no_overflow() -> None:
    with pytest.raises(InvalidRequest, match="more than the 5") as caught:
        answer_room(GenerateFields(max_tokens=5, min_tokens=6), 10, 64, None)
    assert (caught.value.param, caught.value.code) == ("min_tokens", "invalid_request")
