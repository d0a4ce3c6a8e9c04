"""The engine within too little memory: requests wait, are preempted or refused, and all pages come back."""

from collections import defaultdict

import msgspec
import pytest

from engine_fixtures import MakeAdapter, MakeEngine
from engine_runs import request_of, run_all, steps_of
from punica_serve.errors import ConfigError, InvalidRequest


def test_too_little_memory_delays_but_changes_nothing(make_engine: MakeEngine, make_adapter: MakeAdapter) -> None:
    requests = [request_of(f"r{n}", range(1, 8), make_adapter(seed=n), n, max_tokens=20) for n in range(5)]
    plenty = run_all(make_engine(), *requests)
    engine = make_engine(num_kv_pages=16)
    for request in requests:
        engine.add(request)
    streams: dict[str, list[int]] = defaultdict(list)
    preempted: set[str] = set()
    for output in steps_of(engine):
        preempted.update(output.preempted)
        for token in output.tokens:
            streams[token.request_id].append(token.token_id)
    assert preempted, "sixteen pages are too few for all five at once"
    assert streams == plenty


def test_a_request_that_may_move_runs_until_the_kvcache_is_full_and_then_waits(make_engine: MakeEngine) -> None:
    engine = make_engine(num_kv_pages=4)
    capacity = 4 * 4
    request = request_of("a", max_tokens=capacity)
    with pytest.raises(InvalidRequest, match="there is room for"):
        engine.add(request)
    engine.add(request, may_move=True)
    num_tokens, preempted = 0, False
    while not preempted:
        output = engine.step()
        num_tokens += len(output.tokens)
        preempted = "a" in output.preempted
    assert 0 < num_tokens <= capacity and not engine.has_runnable
    engine.cancel("a")
    assert engine.num_free_kv_pages == 4
    with pytest.raises(InvalidRequest, match="the prompt has"):
        engine.add(request_of("b", range(1, capacity + 1), max_tokens=1), may_move=True)


def test_cancel_gives_pages_back_at_once_and_others_go_on(make_engine: MakeEngine, make_adapter: MakeAdapter) -> None:
    engine = make_engine()
    for name in ("a", "b"):
        engine.add(request_of(name, adapter=make_adapter(), max_tokens=50))
    free = engine.num_free_kv_pages
    engine.step()
    engine.cancel("a")
    assert engine.num_free_kv_pages > free
    assert set(run_all(engine, request_of("c"))) == {"b", "c"}
    engine.cancel("a")  # long gone: nothing happens
    assert engine.num_free_kv_pages == engine.num_kv_pages


def test_the_end_of_the_context_ends_a_request(make_engine: MakeEngine) -> None:
    engine = make_engine(max_context=16)
    with pytest.raises(InvalidRequest, match="there is room for 13"):
        engine.add(request_of("a", max_tokens=14))
    assert len(run_all(engine, request_of("a", max_tokens=13))["a"]) == 13


def test_bad_requests_are_refused_by_field(make_engine: MakeEngine, make_adapter: MakeAdapter) -> None:
    engine = make_engine(num_lora_pages=1)
    for request, param in (
        (request_of("a", ()), "prompt"),
        (request_of("a", (3, 97)), "prompt"),
        (request_of("a", range(256), max_tokens=1), "prompt"),
        (request_of("a", max_tokens=254), "max_tokens"),
        (request_of("a", stop_token_ids=(97,)), "stop_token_ids"),
        (request_of("a", logprobs=98), "logprobs"),
        (msgspec.structs.replace(request_of("a"), generated_ids=(97,)), "generated_ids"),
        (msgspec.structs.replace(request_of("a"), generated_ids=(1,) * 8), "generated_ids"),
        (request_of("a", adapter=make_adapter(rank=16)), "lora_id"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            engine.add(request)
        assert caught.value.param == param
    engine.add(request_of("twice"))
    with pytest.raises(InvalidRequest, match="running already"):
        engine.add(request_of("twice"))
    engine.cancel("twice")


def test_more_memory_than_there_is_names_the_setting(make_engine: MakeEngine) -> None:
    for setting in ("num_kv_pages", "num_lora_pages"):
        message = (
            rf"`engine\.{setting}` of 2000000000 does not fit cpu: it takes .* GiB, .* GiB are free; lower it to \d+$"
        )
        with pytest.raises(ConfigError, match=message):
            make_engine(**{setting: 2 * 10**9})
