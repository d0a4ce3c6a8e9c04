"""The engine from the outside: requests in, tokens out, and page accounting that balances."""

import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import integers, lists, tuples

from engine_fixtures import MakeAdapter, MakeEngine
from punica_serve.adapters.folder import UnverifiedAdapter, begin_load
from punica_serve.engine.adapters import reader as adapter_reader
from punica_serve.engine.engine import Engine
from punica_serve.engine.step_output import Failure, StepOutput
from punica_serve.errors import ConfigError, InvalidRequest, ModelRejected
from punica_serve.protocol import AdapterRef, Request, SamplingParams
from waits import DEADLINE_S


def _request(
    name: str, prompt: Iterable[int] = (5, 6, 7), adapter: AdapterRef | None = None, arrival_ns: int = 0, **params: Any
) -> Request:
    sampling = SamplingParams(**{"max_tokens": 8, "ignore_eos": True, "seed": 1, **params})
    return Request(name, arrival_ns, tuple(prompt), sampling, adapter)


def _run(engine: Engine, *requests: Request) -> dict[str, list[int]]:
    """Runs until nothing is left; the tokens of each request, checked to come once and in order."""
    for request in requests:
        engine.add(request)
    streams: dict[str, list[int]] = defaultdict(list)
    for output in _steps(engine):
        for token in output.tokens:
            assert token.position == len(streams[token.request_id])
            streams[token.request_id].append(token.token_id)
    return streams


def _steps(engine: Engine) -> Iterable[StepOutput]:
    deadline = time.monotonic() + DEADLINE_S
    while engine.num_requests:
        assert time.monotonic() < deadline, "the engine makes no progress"
        output = engine.step()
        engine.check_invariants()
        yield output
        if output.batch_size == 0:
            engine.wait(0.1)


def test_a_request_gets_max_tokens_and_its_pages_come_back(make_engine: MakeEngine) -> None:
    engine = make_engine()
    assert len(_run(engine, _request("a"))["a"]) == 8
    assert engine.num_free_kv_pages == engine.num_kv_pages


def test_mixed_requests_get_what_each_gets_alone(make_engine: MakeEngine, make_adapter: MakeAdapter) -> None:
    adapters = [None, *(make_adapter(rank=rank, seed=rank) for rank in (4, 8, 20))]
    requests = [
        _request(f"r{number}", range(3, 5 + 3 * number), adapters[number % 4], number, max_tokens=12)
        for number in range(8)
    ]
    together = _run(make_engine(), *requests)
    for request in requests:
        assert _run(make_engine(), request) == {request.request_id: together[request.request_id]}
    assert len({tuple(tokens) for tokens in together.values()}) > 4, "adapters and prompts make a difference"


def test_chunked_prefill_changes_nothing(make_engine: MakeEngine, make_adapter: MakeAdapter) -> None:
    request = _request("a", range(1, 60), make_adapter())
    whole = _run(make_engine(prefill_budget_tokens=512), request)
    assert _run(make_engine(prefill_budget_tokens=7), request) == whole


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    budget=integers(1, 30),
    max_prefills=integers(2, 6),
    lengths=lists(tuples(integers(1, 25), integers(1, 6)), max_size=8),
)
def test_prefills_that_share_a_step_change_no_token(
    make_engine: MakeEngine, make_adapter: MakeAdapter, budget: int, max_prefills: int, lengths: list[tuple[int, int]]
) -> None:
    adapters = [None, make_adapter(rank=8, seed=1), make_adapter(rank=20, seed=2)]
    requests = [
        _request(f"{number}", range(1, 1 + num_prompt), adapters[number % 3], number, max_tokens=max_tokens)
        for number, (num_prompt, max_tokens) in enumerate(lengths)
    ]
    one_by_one = _run(make_engine(prefill_budget_tokens=budget, max_prefills=1), *requests)
    assert _run(make_engine(prefill_budget_tokens=budget, max_prefills=max_prefills), *requests) == one_by_one


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("cut", [1, 5, 11])
def test_a_moved_request_goes_on_as_if_it_had_stayed(
    make_engine: MakeEngine, make_adapter: MakeAdapter, temperature: float, cut: int
) -> None:
    request = _request("a", adapter=make_adapter(), max_tokens=12, temperature=temperature, seed=99)
    stayed = _run(make_engine(), request)["a"]
    moved = msgspec.structs.replace(request, generated_ids=tuple(stayed[:cut]))
    engine = make_engine()
    engine.add(moved)
    rest = [token for output in _steps(engine) for token in output.tokens]
    assert [token.position for token in rest] == list(range(cut, 12))
    assert [token.token_id for token in rest] == stayed[cut:]


def test_too_little_memory_delays_but_changes_nothing(make_engine: MakeEngine, make_adapter: MakeAdapter) -> None:
    requests = [_request(f"r{n}", range(1, 8), make_adapter(seed=n), n, max_tokens=20) for n in range(5)]
    plenty = _run(make_engine(), *requests)
    engine = make_engine(num_kv_pages=16)
    for request in requests:
        engine.add(request)
    streams: dict[str, list[int]] = defaultdict(list)
    preempted: set[str] = set()
    for output in _steps(engine):
        preempted.update(output.preempted)
        for token in output.tokens:
            streams[token.request_id].append(token.token_id)
    assert preempted, "sixteen pages are too few for all five at once"
    assert streams == plenty


def test_a_request_that_may_move_runs_until_the_kvcache_is_full_and_then_waits(make_engine: MakeEngine) -> None:
    engine = make_engine(num_kv_pages=4)
    capacity = 4 * 4
    request = _request("a", max_tokens=capacity)
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
        engine.add(_request("b", range(1, capacity + 1), max_tokens=1), may_move=True)


def test_cancel_gives_pages_back_at_once_and_others_go_on(make_engine: MakeEngine, make_adapter: MakeAdapter) -> None:
    engine = make_engine()
    for name in ("a", "b"):
        engine.add(_request(name, adapter=make_adapter(), max_tokens=50))
    free = engine.num_free_kv_pages
    engine.step()
    engine.cancel("a")
    assert engine.num_free_kv_pages > free
    assert set(_run(engine, _request("c"))) == {"b", "c"}
    engine.cancel("a")  # long gone: nothing happens
    assert engine.num_free_kv_pages == engine.num_kv_pages


def test_steps_mix_one_prefill_with_decodes_of_several_adapters(
    make_engine: MakeEngine, make_adapter: MakeAdapter
) -> None:
    engine = make_engine()
    for number in range(5):
        engine.add(_request(f"r{number}", adapter=make_adapter(seed=number), arrival_ns=number, max_tokens=20))
    outputs = list(_steps(engine))
    assert max(output.num_adapters for output in outputs) == 5
    assert max(output.batch_size for output in outputs) == 5
    assert all(output.num_prefill_tokens in (0, 3) for output in outputs)


def test_finish_reasons(make_engine: MakeEngine) -> None:
    free_run = _run(make_engine(), _request("a", max_tokens=30))["a"]
    stop = free_run[10]
    engine = make_engine()
    engine.add(_request("a", max_tokens=30, stop_token_ids=(stop,)))
    outputs = list(_steps(engine))
    assert outputs[-1].finished == (("a", "stop"),)
    tokens = [token.token_id for output in outputs for token in output.tokens]
    assert tokens == free_run[: free_run.index(stop) + 1]


def test_min_tokens_forbids_ends_before(make_engine: MakeEngine) -> None:
    first = _run(make_engine(), _request("a"))["a"][0]
    tokens = _run(make_engine(), _request("a", max_tokens=9, stop_token_ids=(first,), min_tokens=5))["a"]
    assert first not in tokens[:5]


def test_the_end_of_the_context_ends_a_request(make_engine: MakeEngine) -> None:
    engine = make_engine(max_context=16)
    with pytest.raises(InvalidRequest, match="there is room for 13"):
        engine.add(_request("a", max_tokens=14))
    assert len(_run(engine, _request("a", max_tokens=13))["a"]) == 13


def test_bad_requests_are_refused_by_field(make_engine: MakeEngine, make_adapter: MakeAdapter) -> None:
    engine = make_engine(num_lora_pages=1)
    for request, param in (
        (_request("a", ()), "prompt"),
        (_request("a", (3, 97)), "prompt"),
        (_request("a", range(256), max_tokens=1), "prompt"),
        (_request("a", max_tokens=254), "max_tokens"),
        (_request("a", stop_token_ids=(97,)), "stop_token_ids"),
        (_request("a", logprobs=98), "logprobs"),
        (msgspec.structs.replace(_request("a"), generated_ids=(97,)), "generated_ids"),
        (msgspec.structs.replace(_request("a"), generated_ids=(1,) * 8), "generated_ids"),
        (_request("a", adapter=make_adapter(rank=16)), "lora_id"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            engine.add(request)
        assert caught.value.param == param
    engine.add(_request("twice"))
    with pytest.raises(InvalidRequest, match="running already"):
        engine.add(_request("twice"))
    engine.cancel("twice")


def test_a_changed_adapter_fails_its_requests_alone_and_for_good(
    make_engine: MakeEngine, make_adapter: MakeAdapter
) -> None:
    engine, changed = make_engine(), make_adapter(seed=3)
    config = Path(changed.uri) / "adapter_config.json"
    config.write_text(config.read_text() + " ")
    engine.add(_request("bad", adapter=changed))
    engine.add(_request("good", adapter=make_adapter(seed=4)))
    outputs = list(_steps(engine))
    (failure,) = [failure for output in outputs for failure in output.failures]
    assert failure.request_ids == ("bad",) and failure.permanent and "changed" in failure.error.message
    assert {token.request_id for output in outputs for token in output.tokens} == {"good"}


def test_more_adapters_than_the_pool_holds_take_turns(make_engine: MakeEngine, make_adapter: MakeAdapter) -> None:
    engine = make_engine(num_lora_pages=2)
    adapters = [make_adapter(seed=number) for number in range(5)]
    streams = _run(engine, *(_request(f"r{n}", adapter=ref, arrival_ns=n) for n, ref in enumerate(adapters)))
    assert [len(streams[f"r{n}"]) for n in range(5)] == [8] * 5
    assert len(engine.resident_adapters) <= 2
    again = _run(engine, _request("again", adapter=adapters[0]))
    assert again["again"] == streams["r0"], "an adapter that was evicted comes back whole"


def test_nobody_waits_for_a_strangers_load(
    make_engine: MakeEngine, make_adapter: MakeAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that hangs on one adapter: the others load, start and finish meanwhile."""
    slow, quick = make_adapter(seed=1), make_adapter(seed=2)
    disk = threading.Event()

    def load_slowly(ref: AdapterRef, *rest: Any) -> UnverifiedAdapter:
        if ref.digest == slow.digest:
            assert disk.wait(DEADLINE_S)
        return begin_load(ref, *rest)

    monkeypatch.setattr(adapter_reader, "begin_load", load_slowly)
    engine = make_engine()
    engine.add(_request("slow", adapter=slow, arrival_ns=1))
    engine.add(_request("quick", adapter=quick, arrival_ns=2))
    engine.add(_request("base", arrival_ns=3))
    finished: list[str] = []
    for output in _steps(engine):
        finished += [name for name, _ in output.finished]
        if len(finished) == 2:
            disk.set()
    assert sorted(finished[:2]) == ["base", "quick"] and finished[2] == "slow"


def test_a_request_can_run_unless_it_awaits_its_adapter(
    make_engine: MakeEngine, make_adapter: MakeAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived = threading.Event()

    def load_late(ref: AdapterRef, *rest: Any) -> UnverifiedAdapter:
        assert arrived.wait(DEADLINE_S)
        return begin_load(ref, *rest)

    monkeypatch.setattr(adapter_reader, "begin_load", load_late)
    engine = make_engine()
    assert not engine.has_runnable
    engine.add(_request("late", adapter=make_adapter()))
    assert not engine.step().has_run and not engine.has_runnable
    engine.add(_request("base"))
    assert engine.has_runnable
    engine.cancel("base")
    assert not engine.has_runnable
    arrived.set()
    while not engine.step().has_run:
        engine.wait(1.0)
    assert engine.has_runnable


def test_a_request_without_a_seed_is_given_one(make_engine: MakeEngine) -> None:
    streams = [tuple(_run(make_engine(), _request("a", temperature=1.0, seed=None))["a"]) for _ in range(3)]
    assert len(set(streams)) > 1


def test_logprobs_are_those_of_the_model(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.add(_request("a", logprobs=3))
    engine.add(_request("b"))
    for output in _steps(engine):
        for token in output.tokens:
            if token.request_id == "b":
                assert token.logprobs is None
                continue
            assert token.logprobs is not None
            assert token.logprobs.top_ids[0] == token.token_id, "greedy draws the most likely"
            assert token.logprobs.logprob == token.logprobs.top_logprobs[0] <= 0
            assert len(token.logprobs.top_ids) == 3


def test_a_strangers_nan_stays_with_the_stranger(make_engine: MakeEngine, make_adapter: MakeAdapter) -> None:
    """Weights may be finite and yet so large that all goes NaN: that request fails, its pages harm nobody."""
    poison = make_adapter(seed=5, scale=1e30)
    good = [_request(f"g{n}", range(1, 4 + 5 * n), arrival_ns=n, max_tokens=20) for n in range(4)]
    alone = _run(make_engine(), *good)
    engine = make_engine(num_kv_pages=40)
    engine.add(_request("bad", range(1, 30), poison))
    for request in good:
        engine.add(request)
    streams: dict[str, list[int]] = defaultdict(list)
    failures: list[Failure] = []
    for output in _steps(engine):
        failures += output.failures
        for token in output.tokens:
            streams[token.request_id].append(token.token_id)
    (failure,) = failures
    assert failure.request_ids == ("bad",) and failure.permanent
    assert "not finite" in failure.error.message and failure.error.param == "lora_id"
    assert streams == alone
    assert _run(engine, *good) == alone, "nor does what it left in the pages"


def test_a_large_adapter_does_not_starve_behind_small_ones(make_engine: MakeEngine, make_adapter: MakeAdapter) -> None:
    engine = make_engine(num_lora_pages=2, max_batch_size=4)
    small = [make_adapter(rank=4, seed=seed) for seed in range(6)]
    large = make_adapter(rank=16, seed=9)
    for number in range(3):
        engine.add(_request(f"s{number}", adapter=small[number], arrival_ns=number))
    engine.add(_request("large", adapter=large, arrival_ns=3))
    later = 4
    for output in _steps(engine):
        if any(token.request_id == "large" for token in output.tokens):
            break
        if output.batch_size and later < 200:
            engine.add(_request(f"s{later}", adapter=small[later % 6], arrival_ns=later))
            later += 1
    assert later < 100, "those that came later were served first"
    for number in range(later):
        engine.cancel(f"s{number}")
    engine.cancel("large")


def test_what_a_step_or_a_cancel_frees_ends_a_wait(make_engine: MakeEngine, make_adapter: MakeAdapter) -> None:
    engine = make_engine(num_lora_pages=1)
    engine.add(_request("a", adapter=make_adapter(seed=1), max_tokens=200))
    while not engine.step().batch_size:
        engine.wait(0.1)
    engine.add(_request("b", adapter=make_adapter(seed=2), arrival_ns=1))
    engine.step()
    engine.cancel("a")
    started = time.monotonic()
    engine.wait(DEADLINE_S)
    assert time.monotonic() - started < DEADLINE_S / 2
    assert len(_run(engine)["b"]) == 8


def test_more_memory_than_there_is_names_the_setting(make_engine: MakeEngine) -> None:
    for setting in ("num_kv_pages", "num_lora_pages"):
        message = (
            rf"`engine\.{setting}` of 2000000000 does not fit cpu: it takes .* GiB, .* GiB are free; lower it to \d+$"
        )
        with pytest.raises(ConfigError, match=message):
            make_engine(**{setting: 2 * 10**9})


def test_wait_ends_when_woken(make_engine: MakeEngine) -> None:
    engine = make_engine()
    assert engine.step() == StepOutput()
    threading.Timer(0.05, engine.wake).start()
    started = time.monotonic()
    engine.wait(DEADLINE_S)
    assert time.monotonic() - started < DEADLINE_S / 2


def test_what_can_never_work_is_said_at_the_start(make_engine: MakeEngine, tmp_path: Path) -> None:
    with pytest.raises(ModelRejected, match="does not exist"):
        make_engine(model=tmp_path / "nothing")
    with pytest.raises(ConfigError, match="the model's limit is 256"):
        make_engine(max_context=257)
    with pytest.raises(ConfigError, match=r"`engine\.attention` is flashinfer, .* take auto"):
        make_engine(attention="flashinfer")


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 0.2), ("float16", 0.03)])
def test_half_precision_is_float32_but_for_rounding(
    make_engine: MakeEngine, make_adapter: MakeAdapter, dtype: str, tolerance: float
) -> None:
    """The first token's scores; later ones may follow another token."""
    request = _request("a", adapter=make_adapter(), max_tokens=1, logprobs=97)

    def scores(engine: Engine) -> dict[int, float]:
        engine.add(request)
        (token,) = [token for output in _steps(engine) for token in output.tokens]
        assert token.logprobs is not None
        return dict(zip(token.logprobs.top_ids, token.logprobs.top_logprobs, strict=True))

    exact = scores(make_engine())
    assert scores(make_engine(dtype=dtype)) == pytest.approx(exact, abs=tolerance)
