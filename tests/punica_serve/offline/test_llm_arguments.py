"""Errors for wrong arguments of LLM name the argument and what it must be."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from punica_serve import SamplingParams
from punica_serve.errors import ConfigError, InvalidRequest
from punica_serve.offline.llm_arguments import (
    check_messages,
    cluster_of,
    device_of,
    list_of_lora_ids,
    list_of_params,
    list_of_prompts,
    list_of_stops,
)

USER = {"role": "user", "content": "42"}


def params(**values: Any) -> SamplingParams:
    return SamplingParams(**values)


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda: cluster_of(None, None, False, {}), "`model` must be a path, or `demo:NAME`, got None"),
        (lambda: cluster_of(3, None, False, {}), "`model` must be a path, or `demo:NAME`, got 3"),
        (lambda: cluster_of("m", ["demo:adapters/roman"], False, {}), "`adapters` must be names with their folders, "),
        (lambda: cluster_of("m", "roman", False, {}), "`adapters` must be names with their folders, "),
        (lambda: cluster_of("m", {"roman": None}, False, {}), "`adapters.roman` must be a path, or `demo:NAME`, got "),
        (lambda: cluster_of("m", None, "yes", {}), "LLM: `strict_base`: must be true or false, got 'yes'"),
        (lambda: cluster_of("m", None, False, {"dtype": "fp16"}), "LLM: `engine.dtype`: must be 'float32', "),
        (lambda: device_of(None, 1), "`device` must be 'cpu' or 'cuda:N', got None"),
        (lambda: device_of(0, 1), "`device` must be 'cpu' or 'cuda:N', got 0"),
        (lambda: device_of("cpu", "2"), "`tensor_parallel` must be a number of devices, got '2'"),
        (lambda: device_of("cpu", True), "`tensor_parallel` must be a number of devices, got True"),
        (lambda: device_of("cpu", False), "`tensor_parallel` must be a number of devices, got False"),
    ],
)
def test_what_makes_no_engine(check: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check()
    assert caught.value.message.startswith(message)


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda: list_of_prompts(None), "`prompts` must be a text, a list of token ids, or a list of these, got None"),
        (lambda: list_of_prompts(42), "`prompts` must be a text, "),
        (lambda: list_of_prompts(b"42"), "`prompts` must be a text, "),
        (lambda: list_of_prompts({"prompt": "42"}), "`prompts` must be a text, "),
        (lambda: list_of_prompts(iter("42")), "`prompts` must be a text, "),
        (lambda: list_of_prompts(["42", None]), "`prompts.1` must be a text, or a list of token ids, got None"),
        (lambda: list_of_prompts([1, "a"]), "`prompts.0` must be a text, or a list of token ids, got 1"),
        (lambda: list_of_prompts([["a"]]), "`prompts.0` must be a text, or a list of token ids, got ['a']"),
        (lambda: list_of_prompts([[True]]), "`prompts.0` must be a text, or a list of token ids, got [True]"),
        (lambda: list_of_prompts([[]]), "`prompts.0`: the prompt is empty; give at least one character or token"),
        (lambda: list_of_prompts(""), "`prompts.0`: the prompt is empty; "),
        (lambda: list_of_prompts("\ud800"), "`prompts.0` must be a text of whole characters, "),
        (lambda: list_of_lora_ids(5, 1), "`lora_ids` must be an adapter's name, or None for the base, or a list"),
        (lambda: list_of_lora_ids([5], 1), "`lora_ids.0` must be an adapter's name, or None for the base, got 5"),
        (lambda: list_of_params({"max_tokens": 3}, 1), "`params` must be a SamplingParams, or a list of one for each "),
        (lambda: list_of_params(SamplingParams, 1), "`params` must be a SamplingParams, "),
        (lambda: list_of_params([None], 1), "`params.0` must be a SamplingParams, got None"),
        (
            lambda: list_of_params(params(temperature="hot"), 1),
            "`temperature` of SamplingParams is 'hot': expected `fl",
        ),
        (lambda: list_of_params(params(temperature=None), 1), "`temperature` of SamplingParams is None: expected `flo"),
        (lambda: list_of_params(params(max_tokens=1.5), 1), "`max_tokens` of SamplingParams is 1.5: expected `int`, "),
        (lambda: list_of_params(params(logprobs=True), 1), "`logprobs` of SamplingParams is True: expected `int | nul"),
        (lambda: list_of_params(params(ignore_eos="no"), 1), "`ignore_eos` of SamplingParams is 'no': expected `bool`"),
        (lambda: list_of_params(params(stop_token_ids=5), 1), "`stop_token_ids` of SamplingParams is 5: expected `arr"),
        (lambda: list_of_params(params(stop_token_ids=("a",)), 1), "`stop_token_ids` of SamplingParams is ('a',): exp"),
        (lambda: list_of_stops(5), "`stop` must be a text, or a list of texts, got 5"),
        (lambda: list_of_stops([5]), "`stop` must be a text, or a list of texts, got [5]"),
        (lambda: list_of_stops(None), "`stop` must be a text, or a list of texts, got None"),
        (
            lambda: check_messages("hi"),
            "`messages` must be a list such as [{'role': 'user', 'content': '42'}], got 'hi",
        ),
        (lambda: check_messages([]), "`messages` must be a list such as "),
        (lambda: check_messages(USER), "`messages` must be a list such as "),
        (
            lambda: check_messages([USER, "hi"]),
            "`messages` must be a list such as [{'role': 'user', 'content': '42'}]; ",
        ),
        (lambda: check_messages([{"role": "user"}]), "`messages` must be a list such as "),
    ],
)
def test_what_asks_for_nothing(check: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check()
    assert caught.value.message.startswith(message)


def test_what_is_right_is_taken() -> None:
    assert cluster_of(Path("/m"), {"a": Path("/a")}, False, {}).adapters == {"a": Path("/a")}
    assert list_of_prompts("42") == ["42"] and list_of_prompts([4, 2]) == [[4, 2]] and list_of_prompts([]) == []
    assert list_of_prompts(("42", [4, 2])) == ["42", [4, 2]]
    assert list_of_lora_ids(None, 2) == [None, None] and list_of_lora_ids(("a", None), 2) == ["a", None]
    assert list_of_params(params(temperature=1, stop_token_ids=[3]), 1) == [
        params(temperature=1.0, stop_token_ids=(3,))
    ]
    assert list_of_params(None, 1) == [SamplingParams()]
    assert list_of_stops("a") == ("a",) and list_of_stops(["a", "b"]) == ("a", "b")
    check_messages([USER])
