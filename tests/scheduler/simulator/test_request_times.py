"""Times of single requests, and the promises that they keep."""

import numpy as np
import pytest

from punica_scheduler.simulator.request_times import request_times
from punica_scheduler.simulator.stream_audit import StreamAudit
from punica_serve.protocol import Deliveries, Ending, Slo, WireError
from punica_serve.simulation.arrivals import Arrivals
from punica_serve.simulation.attainment import Attainment, RequestTimes, attainment
from punica_serve.simulation.tokens import token_at
from punica_serve.workload import RequestLength

VOCAB_SIZE = 97


def test_a_time_per_token_is_that_of_the_tokens_after_the_first() -> None:
    audit = StreamAudit([3, 1, 2], VOCAB_SIZE)
    for position, streams, now_s in ((0, (0, 1, 2), 2.0), (1, (0,), 2.5), (2, (0,), 4.0)):
        tokens = tuple(token_at(stream, position, VOCAB_SIZE) for stream in streams)
        audit.take(Deliveries(streams, (position,) * len(streams), tokens), now_s)
    failed = Ending(2, 1, "error", WireError("out_of_capacity", "gone"))
    audit.take(Deliveries(endings=(Ending(0, 3, "length"), Ending(1, 1, "length"), failed)), 4.0)
    audit.finish()
    lengths = tuple(RequestLength(5, output) for output in (3, 1, 2))
    times = request_times(Arrivals((1.0, 1.5, 1.5), lengths, ()), audit)
    assert times.numbers.tolist() == [0, 1], "one has failed"
    assert times.first_token_s.tolist() == [1.0, 0.5]
    assert times.time_per_token_s[0] == pytest.approx(1.0)
    assert np.isnan(times.time_per_token_s[1])


TIMES = RequestTimes(np.array([0, 1, 3, 4]), np.array([1.0, 1.0, 3.0, 3.0]), np.array([0.1, 0.3, 0.3, np.nan]))


def test_promises_are_counted_apart_and_together() -> None:
    assert attainment(TIMES, [Slo(2.0, 0.2)] * 5) == Attainment(0.5, 0.5, 0.25)
    assert attainment(TIMES, [Slo(2.0)] * 5) == Attainment(0.5, 1.0, 0.5)
    assert attainment(TIMES, [Slo(None, 0.3)] * 5) == Attainment(1.0, 1.0, 1.0)


def test_each_request_has_its_own_promise() -> None:
    slos = [Slo(None, 0.1), Slo(None, 0.2), Slo(None, 0.01), Slo(None, 0.5), Slo(None, 0.01)]
    assert attainment(TIMES, slos) == Attainment(1.0, 0.75, 0.75)


def test_without_promises_or_requests_there_is_nothing_to_attain() -> None:
    assert attainment(TIMES, [Slo()] * 5) is None
    none = RequestTimes(np.array([], dtype=np.int64), np.array([]), np.array([]))
    assert attainment(none, [Slo(1.0, 1.0)]) is None
