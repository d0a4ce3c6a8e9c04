import pytest

from punica_runner.request_spans import RequestSpans
from punica_serve.bench.hops.otlp_collector import otlp_collector
from punica_serve.engine.launch_lead import LaunchMargin
from punica_serve.process import tracing
from punica_serve.process.tracing import SpanContext, SpanSink
from punica_serve.protocol import Request, SamplingParams
from waits import DEADLINE_S

PARENT = SpanContext("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")


def test_spans_have_the_gpus_uuid_and_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "FLUSH_TIMEOUT_S", DEADLINE_S)
    with otlp_collector() as collector:
        sink = SpanSink("worker", collector.url)
        spans = RequestSpans(sink, "GPU-1", "host/0")
        spans.started(Request("r", 0, (1,), SamplingParams(), traceparent=PARENT.traceparent))
        spans.got_tokens(["r"], LaunchMargin(0.0015, early_s=0.00025, ranks_early_s={1: 0.00023}))
        spans.ended("r")
        sink.close()
        attributes = {"punica.gpu": "GPU-1", "punica.gpu_name": "host/0"}
        launches = {
            "punica.launch_lead_us": 1500,
            "punica.launched_early_us": 250,
            "punica.launched_early_us.rank_1": 230,
        }
        assert [(span.name, span.attributes) for span in collector.spans] == [
            ("prefill", {**attributes, **launches}),
            ("decode", attributes),
        ]
