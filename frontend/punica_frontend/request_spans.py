"""What a frontend adds to a request's trace: all of it, from arrival to end."""

import time
from contextvars import ContextVar

from msgspec.structs import replace

from punica_frontend.metrics.figures import RequestFigures
from punica_serve.protocol import Request
from punica_serve.tracing import Span, SpanSink, new_root, parent_of

#: The client's header of this name, for the request that is being served.
TRACEPARENT: ContextVar[str | None] = ContextVar("traceparent", default=None)


class RequestSpans:
    def __init__(self, sink: SpanSink) -> None:
        self._sink = sink

    def begin(self, request: Request, adapter: str) -> tuple[Request, Span | None]:
        """The request as the cluster gets it, and its span; None where its client does not want one."""
        parent, is_sampled = parent_of(TRACEPARENT.get())
        if not is_sampled:
            return request, None
        span = Span("request", parent.child() if parent else new_root(), request.arrival_ns, parent, is_server=True)
        span.attributes = {
            "punica.request_id": request.request_id,
            "punica.adapter": adapter,
            "punica.tenant": request.tenant or "",
            "punica.prompt_tokens": len(request.prompt_ids),
        }
        return replace(request, traceparent=span.context.traceparent), span

    def end(self, span: Span, figures: RequestFigures) -> None:
        span.attributes |= {"punica.outcome": figures.outcome, "punica.tokens": figures.num_tokens}
        if (first_token_s := figures.first_token_s) is not None:
            span.events.append(("first token", span.start_ns + int(1e9 * first_token_s)))
        if figures.outcome not in ("stop", "length", "cancelled"):
            span.error = figures.outcome
        self._sink.emit(span, time.time_ns())
