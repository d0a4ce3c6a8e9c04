"""Requests of several adapters in one engine: each gets its own, and none waits for, or breaks at, another's."""

import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from engine_fixtures import MakeAdapter, MakeEngine
from engine_runs import request_of, run_all, steps_of
from punica_serve.adapters.folder import UnverifiedAdapter, begin_load
from punica_serve.engine.adapters import reader as adapter_reader
from punica_serve.engine.step_output import Failure
from punica_serve.protocol import AdapterRef
from waits import DEADLINE_S


def test_steps_mix_one_prefill_with_decodes_of_several_adapters(
    make_engine: MakeEngine, make_adapter: MakeAdapter
) -> None:
    engine = make_engine()
    for number in range(5):
        engine.add(request_of(f"r{number}", adapter=make_adapter(seed=number), arrival_ns=number, max_tokens=20))
    outputs = list(steps_of(engine))
    assert max(output.num_adapters for output in outputs) == 5
    assert max(output.batch_size for output in outputs) == 5
    assert all(output.num_prefill_tokens in (0, 3) for output in outputs)


def test_a_changed_adapter_fails_its_requests_alone_and_for_good(
    make_engine: MakeEngine, make_adapter: MakeAdapter
) -> None:
    engine, changed = make_engine(), make_adapter(seed=3)
    config = Path(changed.uri) / "adapter_config.json"
    config.write_text(config.read_text() + " ")
    engine.add(request_of("bad", adapter=changed))
    engine.add(request_of("good", adapter=make_adapter(seed=4)))
    outputs = list(steps_of(engine))
    (failure,) = [failure for output in outputs for failure in output.failures]
    assert failure.request_ids == ("bad",) and failure.permanent and "changed" in failure.error.message
    assert {token.request_id for output in outputs for token in output.tokens} == {"good"}


def test_more_adapters_than_the_pool_holds_take_turns(make_engine: MakeEngine, make_adapter: MakeAdapter) -> None:
    engine = make_engine(num_lora_pages=2)
    adapters = [make_adapter(seed=number) for number in range(5)]
    streams = run_all(engine, *(request_of(f"r{n}", adapter=ref, arrival_ns=n) for n, ref in enumerate(adapters)))
    assert [len(streams[f"r{n}"]) for n in range(5)] == [8] * 5
    assert len(engine.resident_adapters) <= 2
    again = run_all(engine, request_of("again", adapter=adapters[0]))
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
    engine.add(request_of("slow", adapter=slow, arrival_ns=1))
    engine.add(request_of("quick", adapter=quick, arrival_ns=2))
    engine.add(request_of("base", arrival_ns=3))
    finished: list[str] = []
    for output in steps_of(engine):
        finished += [name for name, _ in output.finished]
        if len(finished) == 2:
            disk.set()
    assert sorted(finished[:2]) == ["base", "quick"] and finished[2] == "slow"


def test_a_strangers_nan_stays_with_the_stranger(make_engine: MakeEngine, make_adapter: MakeAdapter) -> None:
    """Weights may be finite and yet so large that all goes NaN: that request fails, its pages harm nobody."""
    poison = make_adapter(seed=5, scale=1e30)
    good = [request_of(f"g{n}", range(1, 4 + 5 * n), arrival_ns=n, max_tokens=20) for n in range(4)]
    alone = run_all(make_engine(), *good)
    engine = make_engine(num_kv_pages=40)
    engine.add(request_of("bad", range(1, 30), poison))
    for request in good:
        engine.add(request)
    streams: dict[str, list[int]] = defaultdict(list)
    failures: list[Failure] = []
    for output in steps_of(engine):
        failures += output.failures
        for token in output.tokens:
            streams[token.request_id].append(token.token_id)
    (failure,) = failures
    assert failure.request_ids == ("bad",) and failure.permanent
    assert "not finite" in failure.error.message and failure.error.param == "lora_id"
    assert streams == alone
    assert run_all(engine, *good) == alone, "nor does what it left in the pages"


def test_a_large_adapter_does_not_starve_behind_small_ones(make_engine: MakeEngine, make_adapter: MakeAdapter) -> None:
    engine = make_engine(num_lora_pages=2, max_batch_size=4)
    small = [make_adapter(rank=4, seed=seed) for seed in range(6)]
    large = make_adapter(rank=16, seed=9)
    for number in range(3):
        engine.add(request_of(f"s{number}", adapter=small[number], arrival_ns=number))
    engine.add(request_of("large", adapter=large, arrival_ns=3))
    later = 4
    for output in steps_of(engine):
        if any(token.request_id == "large" for token in output.tokens):
            break
        if output.batch_size and later < 200:
            engine.add(request_of(f"s{later}", adapter=small[later % 6], arrival_ns=later))
            later += 1
    assert later < 100, "those that came later were served first"
    for number in range(later):
        engine.cancel(f"s{number}")
    engine.cancel("large")
