"""In any history no request waits while a GPU that may run it has room.

Only the head of a queue is ever placed, so the promise is made to heads. All GPUs are asked, in no clever order. Where
a GPU has obeyed all commands and all its reports have arrived, its worker says what room there is; elsewhere the
scheduler's accounting does.
"""

from collections.abc import Iterator

from cluster_history import HISTORIES, ClusterHistory
from late_worker import Worker
from punica_scheduler.core import events
from punica_scheduler.core.actions import Action, Start, Stop
from punica_scheduler.core.capacity import STEPS_AHEAD
from punica_scheduler.core.cluster_state import ClusterState
from punica_scheduler.core.request import RequestRecord
from punica_serve.base_model.lora_layout import pages_needed
from punica_serve.protocol import AssignmentId, Request


class WorkHistory(ClusterHistory):
    def __init__(self) -> None:
        super().__init__()
        #: The request of each assignment.
        self.requests: dict[AssignmentId, str] = {}

    @property
    def state(self) -> ClusterState:
        return self.cluster.scheduler._state

    def observe(self, event: events.Event, actions: list[Action]) -> None:
        self.requests |= {each.assignment: each.request.request_id for each in actions if isinstance(each, Start)}
        if not self.state.is_settled:
            return
        taken = set(self.taken(event, actions))
        for record, uuid in self.heads():
            is_taken = (record.request_id, uuid) in taken
            assert is_taken or not self.has_room(record, uuid), f"{record.request_id} waits, and {uuid} has room"
        self.check_larger()
        self.check_adapters(event)

    def taken(self, event: events.Event, actions: list[Action]) -> Iterator[tuple[str, str]]:
        """Requests that this event took off a GPU: the next one may return them to it, this one does not."""
        for action in actions:
            if isinstance(action, Stop):
                yield self.requests[action.assignment], action.gpu_uuid
        if isinstance(event, events.AssignmentsFailed):
            for assignment in event.failure.assignments:
                yield self.requests[assignment], event.failure.gpu_uuid

    def heads(self) -> Iterator[tuple[RequestRecord, str]]:
        """Heads of queues, each with the GPUs that may run it."""
        waiting, quarantine = self.state.waiting, self.state.quarantine
        reserved = quarantine.reserved_gpu(self.state.fleet.gpus)
        if reserved is not None and quarantine.next_suspect is not None:
            yield quarantine.next_suspect, reserved.uuid
        for uuid in self.cluster.workers:
            if self.cluster.is_draining(uuid) or (reserved is not None and uuid == reserved.uuid):
                continue
            queue = waiting.pinned.get(uuid, waiting.queue)
            if queue.head is not None:
                yield queue.head, uuid

    def has_room(self, record: RequestRecord, uuid: str) -> bool:
        worker = self.cluster.workers[uuid]
        is_quiet = not worker.commands and not worker.reports
        return self.state.fleet.gpus[uuid].has_room_for(record) or (is_quiet and has_room(worker, record.as_it_is()))

    def check_larger(self) -> None:
        """No request awaits a larger GPU than those that there are, if one of these is large enough."""
        for record in self.state.waiting.awaiting_larger_gpu:
            for uuid, worker in self.cluster.workers.items():
                is_large = not self.cluster.is_draining(uuid) and could_run(worker, record.as_it_is())
                assert not is_large, f"{record.request_id} awaits a larger GPU than {uuid}"

    def check_adapters(self, event: events.Event) -> None:
        """No request awaits its adapter once it has come, nor for longer than it may."""
        for record in self.state.waiting.awaiting_adapter:
            match event:
                case events.Tick():
                    assert record.retry_at_ns > self.cluster.now_ns
                case events.AdaptersCached(change=change):
                    assert record.digest not in change.came


def has_room(worker: Worker, request: Request) -> bool:
    """Whether a worker that has done all it was told to has room for one more request, and for all the next steps."""
    requests = [sequence.request_now for sequence in worker.sequences.values()]
    return len(requests) < worker.info.max_batch_size and _fit(worker, [*requests, request])


def could_run(worker: Worker, request: Request) -> bool:
    """Whether the request's next steps would fit if it were alone."""
    return _fit(worker, [request])


def _fit(worker: Worker, requests: list[Request]) -> bool:
    """Whether these requests' next steps and their adapters fit together."""
    num_kv_pages = sum(
        worker.page_rule.held_by(min(each.num_tokens + STEPS_AHEAD, each.max_num_tokens)) for each in requests
    )
    num_lora_pages = dict.fromkeys(worker.info.num_lora_pages, 0)
    for adapter in {each.adapter.digest: each.adapter for each in requests if each.adapter}.values():
        for group, num_pages in pages_needed(adapter.ranks).items():
            num_lora_pages[group] += num_pages
    return num_kv_pages <= worker.info.num_kv_pages and all(
        num_lora_pages[group] <= num_pages for group, num_pages in worker.info.num_lora_pages.items()
    )


WorkHistory.TestCase.settings = HISTORIES
TestWorkConservation = WorkHistory.TestCase
