from collections.abc import Iterator
from itertools import count

import pytest

from punica_scheduler.core import events
from punica_scheduler.core.actions import Deliver, Start, Stop
from punica_scheduler.request_spans import RequestSpans
from punica_serve.bench.hops.otlp_collector import OtlpCollector, otlp_collector
from punica_serve.process import tracing
from punica_serve.process.tracing import SpanContext, SpanSink, parent_of
from punica_serve.protocol import (
    AssignmentId,
    AssignmentsFailed,
    Deliveries,
    Ending,
    GpuInfo,
    Request,
    SamplingParams,
    WireError,
)
from waits import DEADLINE_S

PARENT = SpanContext("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")
FIRST, SECOND = AssignmentId(1, 1), AssignmentId(1, 2)


@pytest.fixture
def collector() -> Iterator[OtlpCollector]:
    with otlp_collector() as collector:
        yield collector


@pytest.fixture
def sink(collector: OtlpCollector, monkeypatch: pytest.MonkeyPatch) -> Iterator[SpanSink]:
    monkeypatch.setattr(tracing, "FLUSH_TIMEOUT_S", DEADLINE_S)
    sink = SpanSink("scheduler", collector.url)
    yield sink
    sink.close()


@pytest.fixture
def spans(sink: SpanSink) -> RequestSpans:
    """A nanosecond passes between two looks at the clock."""
    return RequestSpans(sink, count(1).__next__)


def request(traceparent: str | None = PARENT.traceparent) -> Request:
    return Request("r", 0, (1,), SamplingParams(), traceparent=traceparent)


def start(assignment: AssignmentId, gpu: str, of: Request) -> Start:
    return Start(gpu, 1, assignment, of)


def arrived(traceparent: str | None = PARENT.traceparent) -> events.RequestArrived:
    return events.RequestArrived("f", 7, request(traceparent))


def joined(gpu: str, runner: str = "host") -> events.GpuJoined:
    return events.GpuJoined(runner, GpuInfo(gpu, "cpu", 8, 16, 64, {}, f"{runner}/{gpu}"))


def names(collector: OtlpCollector) -> list[tuple[str, tuple[str, ...]]]:
    return [(span.name, tuple(name for name, _ in span.events)) for span in collector.spans]


def failure(*assignments: AssignmentId) -> events.AssignmentsFailed:
    error = WireError("store_unavailable", "the store does not answer")
    return events.AssignmentsFailed(AssignmentsFailed("A", 0, 1, assignments, False, error))


@pytest.mark.parametrize(
    ("end_of_stay", "why"),
    [
        (Stop("A", 2, FIRST), "taken off the GPU"),
        (failure(FIRST), "failed on the GPU"),
        (events.GpuLost("A"), "gpu lost"),
        (joined("A"), "gpu lost"),
        (events.RunnerLost("host"), "gpu lost"),
        (events.RunnerJoined("host"), "gpu lost"),
    ],
)
def test_each_wait_and_each_stay_is_a_span_of_the_request(
    spans: RequestSpans, sink: SpanSink, collector: OtlpCollector, end_of_stay: Stop | events.Event, why: str
) -> None:
    spans.happened(joined("A"))
    spans.happened(arrived())
    told = spans.started(start(FIRST, "A", request()))
    if isinstance(end_of_stay, Stop):
        spans.stopped(end_of_stay)
    else:
        spans.happened(end_of_stay)
    spans.happened(joined("B", "other"))
    spans.started(start(SECOND, "B", request()))
    spans.delivered(Deliver("f", Deliveries(endings=(Ending(7, 3, "stop"),))))
    sink.close()
    assert names(collector) == [("queue", ()), ("assignment", (why,)), ("queue", ()), ("assignment", ())]
    assert {(span.trace_id, span.parent_id) for span in collector.spans} == {(PARENT.trace_id, PARENT.span_id)}
    assert parent_of(told.traceparent) == (SpanContext(PARENT.trace_id, collector.spans[1].span_id), True)
    assert [span.attributes.get("punica.gpu") for span in collector.spans] == [None, "A", None, "B"]
    assert [span.attributes.get("punica.gpu_name") for span in collector.spans] == [None, "host/A", None, "other/B"]
    assert not spans._by_request and not spans._by_assignment and not spans._by_handle


def test_the_wait_begins_where_the_stay_ends(spans: RequestSpans, sink: SpanSink, collector: OtlpCollector) -> None:
    """And not at the next start, which a request that awaits its adapter has half a minute later."""
    spans.happened(arrived())
    spans.started(start(FIRST, "A", request()))
    spans.happened(failure(FIRST))
    for _ in range(1000):
        spans._now_ns()
    spans.started(start(SECOND, "B", request()))
    sink.close()
    _, stay, wait = collector.spans
    assert stay.end_ns - stay.start_ns < 10
    assert wait.end_ns - wait.start_ns > 1000


def test_what_is_lost_elsewhere_ends_no_stay(spans: RequestSpans, sink: SpanSink, collector: OtlpCollector) -> None:
    spans.happened(joined("A"))
    spans.happened(joined("B", runner="other"))
    spans.happened(arrived())
    spans.started(start(SECOND, "A", request()))
    for event in (events.GpuLost("B"), events.RunnerLost("other"), failure(FIRST)):
        spans.happened(event)
    sink.close()
    assert names(collector) == [("queue", ())]


def test_what_is_not_traced_passes_as_it_is(spans: RequestSpans) -> None:
    for traceparent in (None, PARENT.traceparent[:-1] + "0"):
        spans.happened(arrived(traceparent))
        action = start(FIRST, "A", request(traceparent))
        assert spans.started(action) is action.request
    assert not spans._by_handle


@pytest.mark.parametrize("event", [events.FrontendLost("f"), events.FrontendJoined("f")])
def test_nothing_is_kept_of_a_frontend_that_is_lost_or_dials_again(
    spans: RequestSpans, sink: SpanSink, collector: OtlpCollector, event: events.Event
) -> None:
    spans.happened(arrived())
    spans.started(start(FIRST, "A", request()))
    spans.happened(events.FrontendLost("another"))
    assert len(spans._by_request) == len(spans._by_assignment) == len(spans._by_handle) == 1
    spans.happened(event)
    assert not spans._by_request and not spans._by_assignment and not spans._by_handle
    sink.close()
    assert names(collector) == [("queue", ()), ("assignment", ())]
