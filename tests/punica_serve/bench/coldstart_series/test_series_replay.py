"""One run: what counts as its times, and what ends it."""

from collections.abc import Iterator, Mapping
from threading import Event
from typing import Any

import pytest

from punica_serve.bench.coldstart_series.request_queues import Arriving, TimedQueue
from punica_serve.bench.coldstart_series.series_replay import Place, SeriesReplay, SeriesTimes
from punica_serve.bench.coldstart_series.shared_bytes import SharedBytes
from punica_serve.bench.driver import OnStep, preload
from punica_serve.engine.adapters.lora_pool import LoraPool
from punica_serve.engine.engine import Engine
from punica_serve.engine.step_output import StepOutput
from punica_serve.errors import RequestFailed
from punica_serve.protocol import AdapterRef, Request, SamplingParams
from waits import DEADLINE_S


@pytest.fixture
def refs(shared: SharedBytes) -> Iterator[Mapping[int, AdapterRef]]:
    with shared.aliases("x", range(3)) as refs:
        yield refs


class _OneAfterTheOther:
    """The second request arrives when ``is_due`` is set."""

    def __init__(self, requests: list[Arriving], is_due: Event) -> None:
        self._waiting = requests
        self._is_due = is_due
        self._has_begun = False

    def take(self, now_s: float, num_unfinished: int) -> list[Arriving]:
        if self._waiting and (not self._has_begun or self._is_due.is_set()):
            self._has_begun = True
            return [self._waiting.pop(0)]
        return []

    def next_s(self, now_s: float) -> float | None:
        return now_s if self._waiting else None


def replay(
    engine: Engine,
    requests: list[Arriving],
    *,
    place: Place = "either",
    is_blocking: bool = False,
    deadline_s: float = 30.0,
    on_step: OnStep = lambda _: None,
) -> tuple[SeriesTimes, ...]:
    queue = TimedQueue(requests)
    return SeriesReplay(engine, queue, on_step, place=place, is_blocking=is_blocking, deadline_s=deadline_s).run()


def request(number: int, ref: AdapterRef, *, due_s: float = 0.0, num_tokens: int = 3) -> Arriving:
    params = SamplingParams(max_tokens=num_tokens, ignore_eos=True)
    return Arriving(due_s, Request(f"r{number}", number, (1, 2), params, ref))


def test_times_of_a_request_agree(engine: Engine, refs: Mapping[int, AdapterRef]) -> None:
    requests = [request(0, refs[0]), request(1, refs[1], due_s=0.1, num_tokens=5)]
    for times, num_after in zip(replay(engine, requests, place="host"), (2, 4), strict=True):
        assert times.per_token_s is not None and times.first_token_s > 0
        assert times.latency_s == pytest.approx(times.first_token_s + num_after * times.per_token_s)


def test_an_answer_of_one_token_has_no_time_per_token(engine: Engine, refs: Mapping[int, AdapterRef]) -> None:
    (times,) = replay(engine, [request(0, refs[0], num_tokens=1)])
    assert times.per_token_s is None and times.latency_s == times.first_token_s


def test_an_adapter_is_cold_only_once(engine: Engine, refs: Mapping[int, AdapterRef]) -> None:
    """The second request comes once the adapter is there: layer by layer, tokens can come before its last layer."""
    is_there = Event()

    def on_step(_: StepOutput) -> None:
        if refs[0].digest in engine.resident_adapters:
            is_there.set()

    queue = _OneAfterTheOther([request(0, refs[0], num_tokens=9), request(1, refs[0])], is_there)
    run = SeriesReplay(engine, queue, on_step, place="either", is_blocking=False, deadline_s=30.0)
    assert sorted(times.was_resident for times in run.run()) == [False, True]


def test_waiting_for_a_place_counts(engine: Engine, refs: Mapping[int, AdapterRef]) -> None:
    """A request that was due long before the engine could take it."""
    late = [request(0, refs[0], due_s=-5.0)]
    (times,) = replay(engine, late)
    assert times.first_token_s > 5.0 and times.latency_s > 5.0


@pytest.mark.parametrize(("place", "found"), [("host", "on the device already"), ("device", "not on the device")])
def test_an_adapter_in_the_wrong_place_ends_the_run(
    engine: Engine, refs: Mapping[int, AdapterRef], place: Place, found: str
) -> None:
    if place == "host":
        preload(engine, [refs[0]])
    with pytest.raises(RequestFailed, match=f"the adapter of request r0 is {found}"):
        replay(engine, [request(0, refs[0])], place=place)
    assert engine.num_requests == 0


def test_a_run_that_takes_too_long_is_given_up(engine: Engine, refs: Mapping[int, AdapterRef]) -> None:
    requests = [request(number, refs[number], num_tokens=40) for number in range(3)]
    with pytest.raises(RequestFailed, match="unfinished after 0 s: the load is too high"):
        replay(engine, requests, deadline_s=0.0)
    assert engine.num_requests == 0, "they are cancelled"


@pytest.mark.parametrize("is_blocking", [True, False])
def test_others_wait_for_a_load_only_if_loads_block(
    engine: Engine, refs: Mapping[int, AdapterRef], is_blocking: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long copy begins while another request decodes."""
    is_decoding, is_copying, has_begun, has_gone_on = Event(), Event(), Event(), Event()
    write = LoraPool.write

    def slow_write(self: LoraPool, *args: Any) -> float:
        if is_decoding.is_set():
            is_copying.set()
            has_begun.set()
            has_gone_on.wait(0.2 if is_blocking else 20.0)
        copied_s = write(self, *args)
        is_copying.clear()
        return copied_s

    def on_step(output: StepOutput) -> None:
        if output.tokens and is_copying.is_set():
            has_gone_on.set()
        if output.tokens and is_decoding.is_set() and not is_blocking:
            has_begun.wait(1.0)  # or the copier, if it is late, finds no request that decodes
        if output.tokens:
            is_decoding.set()

    monkeypatch.setattr(LoraPool, "write", slow_write)
    queue = _OneAfterTheOther([request(0, refs[0], num_tokens=60), request(1, refs[1])], is_decoding)
    run = SeriesReplay(engine, queue, on_step, place="host", is_blocking=is_blocking, deadline_s=DEADLINE_S)
    assert len(run.run()) == 2
    assert has_gone_on.is_set() is not is_blocking
