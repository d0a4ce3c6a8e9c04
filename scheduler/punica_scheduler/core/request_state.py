"""The states of a request, its reasons to wait, and the transitions that are allowed.

queued ──▶ placed ──▶ finished
  ▲  │       │ │
  │  │       │ └────▶ cancelled, failed
  │  └───────┼──────▶ cancelled, failed, finished (it lost its GPU after its last token)
  └──────────┘        preempted, its GPU lost, failed there but perhaps not elsewhere
"""

from collections.abc import Iterable
from enum import Enum


class RequestState(Enum):
    """Where a request is on its way."""

    __hash__ = object.__hash__  # Enum's own is written in Python, and states are looked up at every turn

    QUEUED = "queued"
    PLACED = "placed"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"


_ENDS = frozenset({RequestState.FINISHED, RequestState.CANCELLED, RequestState.FAILED})

TRANSITIONS: dict[RequestState, frozenset[RequestState]] = {
    RequestState.QUEUED: _ENDS | {RequestState.PLACED},
    RequestState.PLACED: _ENDS | {RequestState.QUEUED},
    RequestState.FINISHED: frozenset(),
    RequestState.CANCELLED: frozenset(),
    RequestState.FAILED: frozenset(),
}


class WaitReason(Enum):
    """The reason why a request is queued."""

    __hash__ = object.__hash__

    #: The placement policy gives it a GPU with room.
    PLACEMENT = "placement"
    #: It may have killed workers, so it needs a GPU of its own; see ``quarantine``.
    QUARANTINE = "quarantine"
    #: Without migration: room on the GPU that preempted it.
    PINNED_GPU = "pinned to GPU"
    #: The store did not give its adapter. It comes to a host, or is tried a last time later.
    ADAPTER = "awaiting adapter"
    #: It has run, and no GPU of today's cluster is large enough. Most often the lost one comes back.
    LARGER_GPU = "awaiting larger GPU"


#: How the reason may change while the request stays queued.
WAIT_TRANSITIONS: dict[WaitReason, frozenset[WaitReason]] = {
    WaitReason.PLACEMENT: frozenset({WaitReason.LARGER_GPU}),
    WaitReason.QUARANTINE: frozenset({WaitReason.LARGER_GPU}),
    WaitReason.PINNED_GPU: frozenset({WaitReason.PLACEMENT}),
    WaitReason.ADAPTER: frozenset({WaitReason.PLACEMENT}),
    WaitReason.LARGER_GPU: frozenset({WaitReason.PLACEMENT, WaitReason.QUARANTINE}),
}


class InvalidTransition(AssertionError):
    """A bug of ours: the state of a request does not allow the transition. Nothing was changed."""

    def __init__(self, request_id: str, start: RequestState, finish: RequestState, event_log: Iterable[object]) -> None:
        super().__init__(f"request {request_id} is {start.value} and can't become {finish.value}")
        #: The scheduler's newest events and actions, oldest first.
        self.event_log = tuple(event_log)
