"""The scheduler's spans of a request's trace: each wait in the queue, and each stay on a GPU.

The events and actions of the core say all of it; the core itself knows no traces. A stay ends with the action that ends
it, or, where nobody is left to be told to stop, with the event that says so.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from msgspec.structs import replace

from punica_scheduler.core import events
from punica_scheduler.core.actions import Deliver, Start, Stop
from punica_serve.process.tracing import Span, SpanContext, SpanSink, parent_of
from punica_serve.protocol import AssignmentId, Request


@dataclass(slots=True)
class _Traced:
    request_id: str
    parent: SpanContext
    #: Its wait, or its stay.
    span: Span
    #: Both while it is on a GPU.
    assignment: AssignmentId | None = None
    gpu_uuid: str | None = None


class RequestSpans:
    """Spans of the live requests that are traced; others cost one lookup."""

    def __init__(self, sink: SpanSink, now_ns: Callable[[], int]) -> None:
        self._sink = sink
        self._now_ns = now_ns
        self._by_request: dict[str, _Traced] = {}
        self._by_assignment: dict[AssignmentId, _Traced] = {}
        #: By frontend and handle.
        self._by_handle: dict[tuple[str, int], _Traced] = {}
        #: The GPUs by UUID, as they joined last.
        self._gpus: dict[str, events.GpuJoined] = {}

    def happened(self, event: events.Event) -> None:
        """Before the core acts upon it."""
        match event:
            case events.RequestArrived(frontend_id, handle, request):
                self._arrived(frontend_id, handle, request)
            case events.FrontendJoined(frontend_id) | events.FrontendLost(frontend_id):
                self._frontend_lost(frontend_id)
            case events.AssignmentsFailed(failure):
                for assignment in failure.assignments:
                    self._leave(assignment, "failed on the GPU")
            case events.GpuJoined(_, gpu):
                self._gpus_lost({gpu.uuid})
                self._gpus[gpu.uuid] = event
            case events.GpuLost(gpu_uuid):
                self._gpus_lost({gpu_uuid})
            case events.RunnerJoined(runner_id) | events.RunnerLost(runner_id):
                self._gpus_lost({uuid for uuid, joined in self._gpus.items() if joined.runner_id == runner_id})

    def started(self, action: Start) -> Request:
        """The request as its GPU gets it: what that records belongs to this stay."""
        traced = self._by_request.get(action.request.request_id)
        if traced is None:
            return action.request
        self._end(traced)
        traced.span = self._begin("assignment", traced.parent)
        traced.span.attributes = {
            "punica.gpu": action.gpu_uuid,
            "punica.gpu_name": self._name_of(action.gpu_uuid),
            "punica.assignment": action.assignment.counter,
        }
        traced.assignment, traced.gpu_uuid = action.assignment, action.gpu_uuid
        self._by_assignment[action.assignment] = traced
        return replace(action.request, traceparent=traced.span.context.traceparent)

    def stopped(self, action: Stop) -> None:
        """Ends a stay: the request was preempted, or moves."""
        self._leave(action.assignment, "taken off the GPU")

    def delivered(self, action: Deliver) -> None:
        for ending in action.deliveries.endings:
            if traced := self._by_handle.pop((action.frontend_id, ending.handle), None):
                if ending.error:
                    traced.span.error = ending.error.message
                self._forget(traced)

    def _arrived(self, frontend_id: str, handle: int, request: Request) -> None:
        parent, is_sampled = parent_of(request.traceparent)
        if parent is None or not is_sampled:
            return
        traced = _Traced(request.request_id, parent, self._begin("queue", parent))
        self._by_request[request.request_id] = self._by_handle[frontend_id, handle] = traced

    def _frontend_lost(self, frontend_id: str) -> None:
        """Ends the spans of a lost frontend's requests: all are cancelled, and nobody is told so."""
        for key in [key for key in self._by_handle if key[0] == frontend_id]:
            self._forget(self._by_handle.pop(key))

    def _gpus_lost(self, uuids: Collection[str]) -> None:
        for assignment in [key for key, traced in self._by_assignment.items() if traced.gpu_uuid in uuids]:
            self._leave(assignment, "gpu lost")
        for uuid in uuids:
            self._gpus.pop(uuid, None)

    def _name_of(self, gpu_uuid: str) -> str:
        joined = self._gpus.get(gpu_uuid)
        return joined.gpu.name if joined else gpu_uuid

    def _leave(self, assignment: AssignmentId, why: str) -> None:
        """Off its GPU, to wait again."""
        if traced := self._by_assignment.get(assignment):
            traced.span.events.append((why, self._now_ns()))
            self._end(traced)
            traced.span = self._begin("queue", traced.parent)

    def _forget(self, traced: _Traced) -> None:
        self._end(traced)
        if self._by_request.get(traced.request_id) is traced:
            del self._by_request[traced.request_id]

    def _begin(self, name: str, parent: SpanContext) -> Span:
        return Span(name, parent.child(), self._now_ns(), parent)

    def _end(self, traced: _Traced) -> None:
        self._sink.emit(traced.span, self._now_ns())
        if traced.assignment is not None:
            del self._by_assignment[traced.assignment]
            traced.assignment = traced.gpu_uuid = None
