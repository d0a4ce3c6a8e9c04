import math
from typing import Any

import pytest
import torch

from punica_serve.base_model.model_config import ModelConfig
from punica_serve.engine.adapters.lora_pool import LoraPool
from punica_serve.engine.request_check import RequestCheck, check_sampling
from punica_serve.errors import ContextOverflow, InvalidRequest
from punica_serve.protocol import AdapterRef, Request, SamplingParams


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


def test_the_range_is_given_in_whole_numbers() -> None:
    with pytest.raises(InvalidRequest, match=r"`top_k` is 2147483648; .* at least 0 and at most 2147483647$"):
        check_sampling(SamplingParams(top_k=1 << 31))


def test_the_edges_of_the_ranges_are_fine() -> None:
    check_sampling(SamplingParams())
    check_sampling(
        SamplingParams(temperature=2.5, top_p=1.0, min_p=1.0, seed=(1 << 64) - 1, max_tokens=4, min_tokens=4)
    )
    check_sampling(SamplingParams(presence_penalty=-2.0, frequency_penalty=2.0, repetition_penalty=0.5))


def test_an_adapter_beyond_the_limits_is_refused(tiny_model: ModelConfig) -> None:
    pool = LoraPool(tiny_model, num_pages=2, dtype=torch.float32, device=torch.device("cpu"))
    check = RequestCheck(vocab_size=9, context=99, capacity=99, lora_pool=pool)

    def request(rank: int) -> Request:
        return Request("a", 0, (1,), SamplingParams(max_tokens=1), adapter=AdapterRef("d", "/d", 1, {"q_proj": rank}))

    check(request(16), may_move=True)
    for rank, reason in (
        (17, "larger than the LoRA pool"),
        (129, "rank 129 in q_proj, and `engine.max_lora_rank` is 128"),
    ):
        with pytest.raises(InvalidRequest, match=reason) as caught:
            check(request(rank), may_move=True)
        assert caught.value.param == "lora_id"


def test_an_answer_beyond_the_context_is_told_with_the_room_that_there_is(tiny_model: ModelConfig) -> None:
    pool = LoraPool(tiny_model, num_pages=2, dtype=torch.float32, device=torch.device("cpu"))
    check = RequestCheck(vocab_size=9, context=16, capacity=99, lora_pool=pool)
    with pytest.raises(ContextOverflow, match=r"beside a prompt of 1 token there is room for 15; lower it$"):
        check(Request("a", 0, (1,), SamplingParams(max_tokens=16)), may_move=True)
    with pytest.raises(ContextOverflow, match=r"the prompt has 16 tokens; with its answer it may have 16; shorten it$"):
        check(Request("a", 0, (1,) * 16, SamplingParams(max_tokens=1)), may_move=False)
    with pytest.raises(InvalidRequest, match="the request has its 1 token already"):
        check(Request("a", 0, (1,), SamplingParams(max_tokens=1), generated_ids=(2,)), may_move=True)


def test_a_kv_cache_smaller_than_the_context_is_told_by_its_setting(tiny_model: ModelConfig) -> None:
    pool = LoraPool(tiny_model, num_pages=2, dtype=torch.float32, device=torch.device("cpu"))
    check = RequestCheck(vocab_size=9, context=99, capacity=16, lora_pool=pool)
    fix = r", or raise `engine\.num_kv_pages`: the KvCache holds 16 tokens$"
    with pytest.raises(ContextOverflow, match=f"with its answer it may have 16; shorten it{fix}"):
        check(Request("a", 0, (1,) * 16, SamplingParams(max_tokens=1)), may_move=False)
    with pytest.raises(ContextOverflow, match=f"of 1 token there is room for 15; lower it{fix}"):
        check(Request("a", 0, (1,), SamplingParams(max_tokens=16)), may_move=False)
