import math
from typing import Any

import pytest

from punica_serve.engine.request_check import check_sampling
from punica_serve.errors import InvalidRequest
from punica_serve.protocol import SamplingParams


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -1),
        ("min_p", 2.0),
        ("repetition_penalty", 0.0),
        ("presence_penalty", math.inf),
        ("max_tokens", 0),
        ("min_tokens", 99),
        ("seed", -1),
        ("seed", 1 << 64),
        ("top_k", 1 << 31),
        ("logprobs", -1),
        ("frequency_penalty", 2.5),
        ("repetition_penalty", 11.0),
    ],
)
def test_out_of_range_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=field) as caught:
        check_sampling(SamplingParams(**{field: value}))
    assert caught.value.param == field


def test_the_edges_of_the_ranges_are_fine() -> None:
    check_sampling(SamplingParams())
    check_sampling(
        SamplingParams(temperature=2.5, top_p=1.0, min_p=1.0, seed=(1 << 64) - 1, max_tokens=4, min_tokens=4)
    )
    check_sampling(SamplingParams(presence_penalty=-2.0, frequency_penalty=2.0, repetition_penalty=0.5))
