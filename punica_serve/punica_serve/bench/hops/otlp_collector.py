"""A collector of OpenTelemetry traces: OTLP over HTTP, as far as a measurement or a test needs one."""

import contextlib
import gzip
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class ReceivedSpan:
    """A span as it was exported. Times are nanoseconds since 1970."""

    process: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    attributes: dict[str, str | int]
    #: Names, and times in nanoseconds since 1970.
    events: tuple[tuple[str, int], ...]


class OtlpCollector:
    """The spans that have come, in that order."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.spans: list[ReceivedSpan] = []

    def receive(self, body: bytes) -> None:
        """Takes an export request, uncompressed."""
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            names = {one.key: one.value.string_value for one in resource.resource.attributes}
            for scope in resource.scope_spans:
                for span in scope.spans:
                    attributes: dict[str, str | int] = {
                        one.key: one.value.string_value or one.value.int_value for one in span.attributes
                    }
                    self.spans.append(
                        ReceivedSpan(
                            names["service.name"],
                            span.name,
                            span.trace_id.hex(),
                            span.span_id.hex(),
                            span.parent_span_id.hex(),
                            span.start_time_unix_nano,
                            span.end_time_unix_nano,
                            attributes,
                            tuple((event.name, event.time_unix_nano) for event in span.events),
                        )
                    )


@contextlib.contextmanager
def otlp_collector() -> Iterator[OtlpCollector]:
    """Collects on a free port while the context is open."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            assert self.path == "/v1/traces"
            collector.receive(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector = OtlpCollector(server.server_address[1])
        serving = threading.Thread(target=server.serve_forever, daemon=True)
        serving.start()
        try:
            yield collector
        finally:
            server.shutdown()
            serving.join()
