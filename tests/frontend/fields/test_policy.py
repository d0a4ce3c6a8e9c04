import logging
from typing import Any

import pytest

from punica_frontend.fields.policy import LOG_EVERY_S, MAX_NAMED, MAX_UNKNOWN, FieldPolicy
from punica_frontend.metrics.metrics import Metrics
from punica_frontend.openai.chat_body import ChatBody
from punica_frontend.openai.completion_body import CompletionBody
from punica_serve.errors import InvalidRequest


def body(**fields: Any) -> CompletionBody:
    return CompletionBody.model_validate({"prompt": "4", **fields})


def counts(metrics: Metrics) -> dict[str, dict[str, int]]:
    return {name: {str(key): count[key] for key in count} for name, count in metrics.unknown_fields.items() if count}


def test_a_refusal_names_the_first_and_counts_all() -> None:
    metrics = Metrics()
    with pytest.raises(InvalidRequest) as refused:
        FieldPolicy("refuse", metrics).check(body(suffix="x", made_up=1, user="u", **{"a\n": 1}))
    assert refused.value.message == "`suffix` is not supported here; leave it out (and 2 more)"
    assert refused.value.param == "suffix"
    assert counts(metrics) == {name: {"refused": 1} for name in ("suffix", "made_up", "other")}


def test_names_of_adapters_come_first() -> None:
    with pytest.raises(InvalidRequest, match=r"^`lora_path` is not supported here; give the adapter's name as `model`"):
        FieldPolicy("refuse", Metrics()).check(body(suffix="x", lora_path="/roman"))


def test_ignored_fields_are_named_and_counted_once_a_request() -> None:
    metrics = Metrics()
    message = {"role": "user", "content": "hi", "made_up": 1}
    ignored = FieldPolicy("warn", metrics).check(ChatBody.model_validate({"messages": [message] * 3, "tools": [{}]}))
    assert ignored == ("tools", "messages.made_up")
    assert counts(metrics) == {name: {"ignored": 1} for name in ("tools", "messages.made_up")}


def test_the_list_of_names_is_bounded() -> None:
    policy = FieldPolicy("warn", Metrics())
    names = tuple(f"field_{number}" for number in range(MAX_UNKNOWN))
    assert policy.check(body(**dict.fromkeys(names, 1))) == (*names[:MAX_NAMED], "...")
    assert policy.check(body(**{"odd name\r\n": 1})) == ("...",)
    with pytest.raises(InvalidRequest, match=f"and {MAX_UNKNOWN} more"):
        policy.check(body(**dict.fromkeys((*names, "one_more"), 1)))


def test_adapters_are_refused_even_where_others_are_ignored() -> None:
    metrics = Metrics()
    with pytest.raises(InvalidRequest) as refused:
        FieldPolicy("warn", metrics).check(body(tools=[{}], adapter="roman"))
    assert refused.value.param == "adapter"
    assert counts(metrics)["adapter"] == {"refused": 1}


@pytest.mark.parametrize("wrapper", ["extra_body", "options", "parameters"])
def test_an_adapter_in_an_object_that_nobody_unpacked_is_refused_too(wrapper: str) -> None:
    policy = FieldPolicy("warn", Metrics())
    with pytest.raises(InvalidRequest, match="give the adapter's name as `model`") as refused:
        policy.check(body(**{wrapper: {"top_k": 1, "adapter_id": "roman"}}))
    assert refused.value.param == f"{wrapper}.adapter_id"
    assert policy.check(body(**{wrapper: {"top_k": 1, "adapter_id": ""}})) == (wrapper,)
    schema = {"type": "json_schema", "json_schema": {"schema": {"properties": {"adapter": {"type": "string"}}}}}
    assert policy.check(body(response_format=schema)) == ("response_format",)


def test_the_log_has_a_line_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 100.0
    policy = FieldPolicy("warn", Metrics(), monotonic=lambda: now_s)
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            policy.check(body(tools=[{}]))
        now_s += LOG_EVERY_S
        policy.check(body(suffix="x"))
    first, second = (record.getMessage() for record in caplog.records)
    assert first == "ignored unsupported fields of a request: tools"
    assert second.endswith(": suffix (and 4 more since the last such line)")


def test_strangers_make_no_series_without_end() -> None:
    metrics = Metrics(num_named=3)
    policy = FieldPolicy("refuse", metrics)
    for number in range(10_000):
        with pytest.raises(InvalidRequest):
            policy.check(body(**{f"made_up_{number}": 1}))
    named = dict(metrics.unknown_fields.items())
    assert len(named) == 4 and named["other"]["refused"] > 9_000
