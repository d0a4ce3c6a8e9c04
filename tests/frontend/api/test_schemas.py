import json
import math

import httpx
import pytest
import torch
from pydantic import ValidationError

from punica_frontend.api.schemas import MAX_LOGPROBS, GenerateFields, are_integers
from punica_frontend.websocket.frame_types import FRAME
from punica_serve.engine.batching.sequence import Sequence
from punica_serve.engine.sampler import Sampler
from punica_serve.protocol import Request, SamplingParams
from punica_serve.protocol.sampling_ranges import RANGES

VOCAB_SIZE = 32

INTEGERS = {"top_k", "seed", "min_tokens", "max_tokens", "logprobs"}


def step(name: str, value: float, towards: float) -> float:
    """The next value that the field could have."""
    if name in INTEGERS:
        return int(value) + (1 if towards > value else -1)
    return math.nextafter(value, towards)


def limits(name: str) -> tuple[float, float]:
    """The smallest and the largest value that is accepted."""
    low, high, above_low = RANGES[name]
    if name == "logprobs":
        high = MAX_LOGPROBS
    if above_low:
        low = step(name, low, math.inf)
    return low, high if high != math.inf else math.nextafter(math.inf, 0)


def beyond(name: str) -> tuple[float, float]:
    low, high = limits(name)
    return step(name, low, -math.inf), step(name, high, math.inf)


@pytest.mark.parametrize("others", [{}, {"temperature": 1.0, "repetition_penalty": 1.5}])
@pytest.mark.parametrize("end", [0, 1])
@pytest.mark.parametrize("name", RANGES)
def test_a_sampler_can_draw_with_whatever_is_accepted(name: str, end: int, others: dict[str, float]) -> None:
    fields = GenerateFields.model_validate({**others, name: limits(name)[end]})
    chosen = {other: getattr(fields, other) for other in RANGES if getattr(fields, other) is not None}
    request = Request("r", 0, (1, 2), SamplingParams(**chosen), generated_ids=(3,))
    logits = torch.linspace(-4, 4, VOCAB_SIZE).unsqueeze(0)
    sampler = Sampler(VOCAB_SIZE, (0,), max_rows=1, device=torch.device("cpu"))
    (draw,) = sampler.launch(logits, (Sequence.of(request, 256),), [0]).read()
    assert draw is not None and 0 <= draw.token_id < VOCAB_SIZE


@pytest.mark.parametrize("end", [0, 1])
@pytest.mark.parametrize("name", RANGES)
async def test_the_next_value_is_refused_by_field(client: httpx.AsyncClient, name: str, end: int) -> None:
    content = json.dumps({"prompt": "4", name: beyond(name)[end]})
    response = await client.post("/v1/generate", content=content, headers={"content-type": "application/json"})
    assert (response.status_code, response.json()["error"]["param"]) == (422, name)


@pytest.mark.parametrize("number", ["1" + 400 * "0", "-1" + 400 * "0", str(1 << 64), str(-(1 << 63) - 1), "1e400"])
@pytest.mark.parametrize("name", RANGES)
def test_huge_numbers_are_refused_or_drawn_with(name: str, number: str) -> None:
    frame = f'{{"op": "generate", "request_id": "r", "{name}": {number}}}'
    if name == "temperature" and number == str(1 << 64):
        FRAME.validate_json(frame)
        return
    with pytest.raises(ValidationError) as raised:
        FRAME.validate_json(frame)
    assert [error["loc"] for error in raised.value.errors()] == [("generate", name)]


@pytest.mark.parametrize("name", ["input_ids", "stop_token_ids", "stop"])
def test_a_long_list_of_wrong_items_is_one_error(name: str) -> None:
    with pytest.raises(ValidationError) as raised:
        GenerateFields.model_validate({name: [[]] * 100_000})
    assert [error["loc"] for error in raised.value.errors()] == [(name, 0)]


def test_a_number_that_is_whole_is_an_integer_however_it_is_written() -> None:
    fields = GenerateFields.model_validate_json('{"seed": 7.0, "top_k": 3e0, "input_ids": [1.0, 2], "temperature": 1}')
    assert (fields.seed, fields.top_k, fields.input_ids, fields.temperature) == (7, 3, [1, 2], 1.0)
    assert all(type(value) is int for value in (fields.seed, fields.top_k, *(fields.input_ids or ())))
    for wrong in ('{"seed": 7.5}', '{"seed": true}', '{"seed": "7"}', '{"input_ids": [1.5]}'):
        with pytest.raises(ValidationError, match="valid integer"):
            GenerateFields.model_validate_json(wrong)


@pytest.mark.parametrize(("stop", "says"), [("", "at least 1 character"), ("x" * 257, "at most 256 characters")])
def test_stop_strings_are_counted_in_characters(stop: str, says: str) -> None:
    for value in (stop, [stop]):
        with pytest.raises(ValidationError, match=says):
            GenerateFields.model_validate({"stop": value})


@pytest.mark.parametrize("item", [True, 1.0, 1.5, math.nan, None, "1", "\ud800", [1], {"1": 1}])
def test_a_list_with_anything_else_is_none_of_integers(item: object) -> None:
    assert not are_integers([item])
    assert not are_integers([1, item])
    assert are_integers([1, -1, 1 << 70])
