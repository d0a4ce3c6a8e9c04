"""A worker's spans in a request's trace: prefill, until its first token here, and decode."""

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from punica_serve.process.tracing import Span, SpanContext, SpanSink, Value, parent_of
from punica_serve.protocol import Request

if TYPE_CHECKING:  # only the worker process imports torch
    from punica_serve.engine.launch_lead import LaunchMargin


class RequestSpans:
    """The open spans of traced requests on this worker."""

    def __init__(self, sink: SpanSink, gpu_uuid: str, gpu_name: str) -> None:
        self._sink = sink
        self._gpu_uuid = gpu_uuid
        self._gpu_name = gpu_name
        self._open: dict[str, tuple[SpanContext, Span]] = {}

    def started(self, request: Request) -> None:
        parent, is_sampled = parent_of(request.traceparent)
        if parent is not None and is_sampled:
            self._open[request.request_id] = parent, self._begin("prefill", parent, time.time_ns())

    def got_tokens(self, request_ids: Iterable[str], margin: "LaunchMargin | None" = None) -> None:
        """Ends prefill spans and begins decode spans of requests that got tokens in one step.

        ``margin``: of the step that was launched before that one ended.
        """
        if not self._open:
            return
        now_ns = time.time_ns()
        for request_id in request_ids:
            if (traced := self._open.get(request_id)) and traced[1].name == "prefill":
                parent, span = traced
                if margin is not None:
                    span.attributes["punica.launch_lead_us"] = round(1e6 * margin.lead_s)
                    span.attributes["punica.launched_early_us"] = round(1e6 * margin.early_s)
                    for rank, early_s in margin.ranks_early_s.items():
                        span.attributes[f"punica.launched_early_us.rank_{rank}"] = round(1e6 * early_s)
                self._sink.emit(span, now_ns)
                self._open[request_id] = parent, self._begin("decode", parent, now_ns)

    def ended(self, request_id: str) -> None:
        if traced := self._open.pop(request_id, None):
            self._sink.emit(traced[1], time.time_ns())

    def _begin(self, name: str, parent: SpanContext, now_ns: int) -> Span:
        attributes: dict[str, Value] = {"punica.gpu": self._gpu_uuid, "punica.gpu_name": self._gpu_name}
        return Span(name, parent.child(), now_ns, parent, attributes)
