"""When an engine has something to run, and what ends a wait for it."""

import threading
import time
from typing import Any

import pytest

from engine_fixtures import MakeAdapter, MakeEngine
from engine_runs import request_of, run_all
from punica_serve.adapters.folder import UnverifiedAdapter, begin_load
from punica_serve.engine.adapters import reader as adapter_reader
from punica_serve.engine.step_output import StepOutput
from punica_serve.protocol import AdapterRef
from waits import DEADLINE_S


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
    engine.add(request_of("late", adapter=make_adapter()))
    assert not engine.step().has_run and not engine.has_runnable
    engine.add(request_of("base"))
    assert engine.has_runnable
    engine.cancel("base")
    assert not engine.has_runnable
    arrived.set()
    while not engine.step().has_run:
        engine.wait(1.0)
    assert engine.has_runnable


def test_what_a_step_or_a_cancel_frees_ends_a_wait(make_engine: MakeEngine, make_adapter: MakeAdapter) -> None:
    engine = make_engine(num_lora_pages=1)
    engine.add(request_of("a", adapter=make_adapter(seed=1), max_tokens=200))
    while not engine.step().batch_size:
        engine.wait(0.1)
    engine.add(request_of("b", adapter=make_adapter(seed=2), arrival_ns=1))
    engine.step()
    engine.cancel("a")
    started = time.monotonic()
    engine.wait(DEADLINE_S)
    assert time.monotonic() - started < DEADLINE_S / 2
    assert len(run_all(engine)["b"]) == 8


def test_wait_ends_when_woken(make_engine: MakeEngine) -> None:
    engine = make_engine()
    assert engine.step() == StepOutput()
    threading.Timer(0.05, engine.wake).start()
    started = time.monotonic()
    engine.wait(DEADLINE_S)
    assert time.monotonic() - started < DEADLINE_S / 2
