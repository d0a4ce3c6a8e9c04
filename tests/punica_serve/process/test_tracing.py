import logging
import subprocess
import sys

import pytest

from punica_serve.bench.hops.otlp_collector import otlp_collector
from punica_serve.errors import ConfigError
from punica_serve.process import tracing
from punica_serve.process.tracing import Span, SpanContext, parent_of, span_sink
from waits import DEADLINE_S

PARENT = SpanContext("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")


@pytest.fixture(autouse=True)
def no_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in tracing.ENDPOINT_ENVS:
        monkeypatch.delenv(name, raising=False)


def test_a_context_that_was_passed_on_is_the_same() -> None:
    assert parent_of(PARENT.traceparent) == (PARENT, True)
    assert parent_of(PARENT.traceparent[:-1] + "0") == (PARENT, False)


@pytest.mark.parametrize(
    "traceparent",
    [
        None,
        "",
        "nonsense",
        f"ff-{'1' * 32}-{'1' * 16}-01",
        f"00-{'0' * 32}-{'1' * 16}-01",
        f"00-{'1' * 32}-{'0' * 16}-01",
    ],
)
def test_an_invalid_context_begins_a_trace(traceparent: str | None) -> None:
    assert parent_of(traceparent) == (None, True)


def test_a_span_arrives_as_it_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "FLUSH_TIMEOUT_S", DEADLINE_S)
    with otlp_collector() as collector:
        sink = span_sink("worker", collector.url)
        assert sink is not None
        span = Span("decode", PARENT.child(), 1_000, PARENT, {"punica.gpu": "GPU-1"}, [("evicted", 1_500)])
        sink.emit(span, 2_000)
        sink.close()
    (received,) = collector.spans
    assert (received.process, received.name, received.parent_id) == ("punica-worker", "decode", PARENT.span_id)
    assert (received.trace_id, received.span_id) == (PARENT.trace_id, span.context.span_id)
    assert (received.start_ns, received.end_ns) == (1_000, 2_000)
    assert (received.attributes, received.events) == ({"punica.gpu": "GPU-1"}, (("evicted", 1_500),))


def test_if_the_collector_is_down_only_spans_are_lost() -> None:
    """Runs in a process of its own, because the exporter retries until its process ends."""
    code = (
        "from punica_serve.process.tracing import MAX_QUEUED_SPANS, Span, new_root, span_sink\n"
        "sink = span_sink('worker', 'http://127.0.0.1:1')\n"
        "for number in range(3 * MAX_QUEUED_SPANS): sink.emit(Span('decode', new_root(), number), number + 1)\n"
        "sink.close()\n"
        "print('closed')"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert told.stdout == "closed\n"


@pytest.mark.parametrize(
    "missing", ["opentelemetry", "opentelemetry.exporter.otlp", "opentelemetry.exporter.otlp.proto.http"]
)
def test_a_missing_exporter_matters_only_with_an_endpoint(missing: str) -> None:
    code = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "from punica_serve.errors import ConfigError\n"
        "from punica_serve.process.tracing import check_exporter, span_sink\n"
        "assert span_sink('x', None) is None\n"
        "try: check_exporter('http://collector:4318')\n"
        "except ConfigError as error: print(error)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "not installed; pip install 'punica-serve[otel]'" in told.stdout


def test_without_an_exporter_an_endpoint_of_the_environment_alone_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A Kubernetes operator may set the variable for every container."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http", None)
    with caplog.at_level(logging.WARNING):
        assert span_sink("worker", None) is None
    (record,) = caplog.records
    assert "http://collector:4318" in record.message and "pip install 'punica-serve[otel]'" in record.message
    with pytest.raises(ConfigError, match="remove `tracing"):
        span_sink("worker", "http://collector:4318")


def test_without_an_endpoint_opentelemetry_is_not_imported() -> None:
    assert span_sink("worker", None) is None
    code = (
        "import sys, punica_frontend.main, punica_scheduler.server, punica_runner.worker;"
        "from punica_serve.process.tracing import span_sink; assert span_sink('x', None) is None;"
        "print([name for name in sys.modules if name.startswith(('opentelemetry.sdk', 'opentelemetry.exporter'))])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert told.stdout == "[]\n"
