"""The loader's record of an adapter, and its states.

                             ┌─▶ arriving ─┐
loading ────┬──▶ staged ──▶ copying ──▶ resident
  │ │ └▶ streaming │            │          │
  │ └────────┴─────┼────────────┴▶ failed  │
  └────────────────┴───────────────────────┴──▶ evicted

The record begins when a request needs the adapter, or when a prefetched one goes on to the device, and ends when the
adapter leaves the device. ``HostLoad`` has the states of its way to host memory. The host cache owns the pins, which
outlast both.
"""

from dataclasses import dataclass, field
from enum import Enum

import torch

from punica_serve.adapters.folder import unreadable
from punica_serve.base_model.lora_layout import pages_needed
from punica_serve.engine.adapters.adapter_peers import GroupCopy
from punica_serve.engine.adapters.host_cache import HostCopy
from punica_serve.engine.adapters.layer_arrival import Arrival
from punica_serve.engine.adapters.load_trace import LoadPhase, LoadTrace
from punica_serve.engine.adapters.lora_pool import AdapterPages
from punica_serve.engine.adapters.page_stream import PageStream
from punica_serve.errors import AdapterRejected, PunicaError, RequestFailed, StoreUnavailable
from punica_serve.errors.invariants import require
from punica_serve.protocol import AdapterRef, LoraGroup


class AdapterState(Enum):
    #: On its way to host memory.
    LOADING = "loading"
    #: On its way to host memory, with pages that are filled meanwhile if its packed form is on this host.
    STREAMING = "streaming"
    #: Packed in host memory, and waits for pages, or for its pages to be filled.
    STAGED = "staged"
    #: It has pages, which a thread fills.
    COPYING = "copying"
    #: A launched step waits for its layers on the device, and later steps may use it: they run after that one.
    ARRIVING = "arriving"
    #: Steps may use it.
    RESIDENT = "resident"
    #: No request used it, and others needed its pages or it was unwanted.
    EVICTED = "evicted"
    #: It could not be read or copied.
    FAILED = "failed"


TRANSITIONS: dict[AdapterState, frozenset[AdapterState]] = {
    AdapterState.LOADING: frozenset(
        {AdapterState.STREAMING, AdapterState.STAGED, AdapterState.EVICTED, AdapterState.FAILED}
    ),
    AdapterState.STREAMING: frozenset({AdapterState.STAGED, AdapterState.FAILED}),
    AdapterState.STAGED: frozenset({AdapterState.COPYING, AdapterState.EVICTED}),
    AdapterState.COPYING: frozenset({AdapterState.ARRIVING, AdapterState.RESIDENT, AdapterState.FAILED}),
    AdapterState.ARRIVING: frozenset({AdapterState.RESIDENT, AdapterState.FAILED}),
    AdapterState.RESIDENT: frozenset({AdapterState.EVICTED}),
    AdapterState.EVICTED: frozenset(),
    AdapterState.FAILED: frozenset(),
}

#: In these states it holds a copy in host memory.
_HOLDING_COPY = (AdapterState.STAGED, AdapterState.COPYING, AdapterState.ARRIVING)
#: In these states it is on its way to host memory.
_LOADING = (AdapterState.LOADING, AdapterState.STREAMING)
#: In these states a thread fills its pages.
_FILLING = (AdapterState.COPYING, AdapterState.ARRIVING)


@dataclass(slots=True, eq=False)
class AdapterEntry:
    """An adapter that is loading, or loaded."""

    ref: AdapterRef
    state: AdapterState = AdapterState.LOADING
    #: Requests that use the adapter.
    refcount: int = 0
    #: Held while STAGED, COPYING and ARRIVING.
    copy: HostCopy | None = None
    #: From COPYING on, or from STREAMING on.
    pages: AdapterPages = field(default_factory=dict)
    #: The copies to the pages of all ranks, while COPYING and ARRIVING.
    filling: GroupCopy | None = None
    #: Fills its pages while STREAMING.
    stream: PageStream | None = None
    #: Set where a step may wait for the layers while they are copied.
    arrival: Arrival | None = None
    #: The end of the last step that may read the pages, once no request uses the adapter.
    fence: torch.cuda.Event | None = None
    #: It is evicted, from host memory too, when its last user ends.
    is_unwanted: bool = False
    #: Traces the load that a request waits for.
    trace: LoadTrace | None = None
    #: The pages that it takes on the device, whether it has them or not.
    num_pages: dict[LoraGroup, int] = field(init=False)

    def __post_init__(self) -> None:
        self.num_pages = pages_needed(self.ref.ranks)

    @property
    def is_evictable(self) -> bool:
        """Whether no request uses it and no thread writes its pages."""
        return not self.refcount and AdapterState.EVICTED in TRANSITIONS[self.state]

    @property
    def is_ready(self) -> bool:
        """Whether any step may use it."""
        return self.state in (AdapterState.RESIDENT, AdapterState.ARRIVING)

    @property
    def is_loading(self) -> bool:
        """Whether it is on its way to host memory."""
        return self.state in _LOADING

    @property
    def is_on_its_way(self) -> bool:
        """Whether its pages are being filled, or will be at once."""
        return self.state is AdapterState.COPYING or (self.stream is not None and self.stream.is_flowing)

    @property
    def has_copied(self) -> bool:
        """Whether the pages are filled on all ranks, or will not be."""
        return self.filling is not None and self.filling.done.done()

    @property
    def is_filling(self) -> bool:
        """Whether the pages of some rank are being filled at this moment."""
        return self.filling is not None and not self.filling.done.done()

    @property
    def is_awaitable(self) -> bool:
        """Whether a step can wait for the adapter's layers: on every rank it will find all of them, late or not."""
        if self.filling is None or self.arrival is None:
            return False
        return self.filling.queued_s is not None and self.arrival.is_awaitable

    # -------------------------------------------------------------- changes, which no other class makes

    def acquire(self) -> None:
        self.refcount += 1

    def release(self) -> None:
        self.refcount -= 1

    def set_fence(self, fence: torch.cuda.Event | None) -> None:
        """Sets the fence after which no step reads the pages, unless the adapter is acquired again."""
        self.fence = fence

    def mark_unwanted(self) -> None:
        self.is_unwanted = True

    def want(self) -> None:
        """Takes back an eviction that was to come."""
        self.is_unwanted = False

    def set_trace(self, trace: LoadTrace) -> None:
        """Sets the trace of the load to host memory, which goes on to the device."""
        self.trace = trace

    def take_pages(self, pages: AdapterPages) -> None:
        """Gives it pages to be filled."""
        self.pages = pages

    def begin_stream(self, stream: PageStream) -> None:
        """Gives it pages that are filled while it is read."""
        self._become(AdapterState.STREAMING)
        self.stream = stream

    def stage(self, copy: HostCopy) -> None:
        """Records that it is in host memory; takes over a reference to the copy."""
        self._become(AdapterState.STAGED)
        self.copy, self.stream = copy, None

    def begin_copy(self, filling: GroupCopy, arrival: Arrival | None) -> None:
        self._become(AdapterState.COPYING)
        self.filling, self.arrival = filling, arrival
        if (trace := self.trace) is not None:
            filling.done.add_done_callback(lambda _: trace.end(LoadPhase.COPYING))

    def join(self) -> None:
        """Records that a launched step waits for its layers."""
        self._become(AdapterState.ARRIVING)

    def stop_joining(self) -> None:
        """Ends the waiting of steps for its layers: it is used once it is resident."""
        self.arrival = None

    def end_copy(self) -> HostCopy | None:
        """Records that its pages are filled. Returns the copy that it held, for release."""
        self._become(AdapterState.RESIDENT)
        return self._leave_host()

    def end(self, state: AdapterState) -> HostCopy | None:
        """Ends the record of an adapter that was evicted or has failed. Returns the copy that it held, for release."""
        self._become(state)
        return self._leave_host()

    def _leave_host(self) -> HostCopy | None:
        copy, self.copy, self.filling, self.arrival, self.stream = self.copy, None, None, None, None
        return copy

    def _become(self, state: AdapterState) -> None:
        """Moves to another state. Raises InvariantBroken for what ``TRANSITIONS`` does not allow; changes nothing."""
        require(
            state in TRANSITIONS[self.state],
            f"adapter {self.ref.digest} is {self.state.value} and can't become {state.value}",
        )
        self.state = state

    def check_invariants(self) -> None:
        digest = self.ref.digest
        require(TRANSITIONS[self.state], f"adapter {digest} is {self.state.value}, and yet here")
        require(self.refcount >= 0, f"adapter {digest} released more often than acquired")
        holds_copy = self.state in _HOLDING_COPY
        require(holds_copy == (self.copy is not None), f"adapter {digest} holds host memory that it does not need")
        require(
            (self.state in _FILLING) == (self.filling is not None),
            f"adapter {digest}: its state does not match its copy",
        )
        is_streaming = self.state is AdapterState.STREAMING
        require(is_streaming == (self.stream is not None), f"adapter {digest}: its state does not match its stream")
        require(not (self.is_unwanted and self.is_evictable), f"adapter {digest} should have been evicted")


@dataclass(frozen=True, slots=True)
class AdapterFailure:
    """An adapter that could not be loaded. ``permanent``: its files are wrong, so no other device can load it."""

    digest: str
    permanent: bool
    error: PunicaError

    @classmethod
    def of(cls, ref: AdapterRef, error: BaseException) -> "AdapterFailure":
        kind = StoreUnavailable if isinstance(error, StoreUnavailable) else RequestFailed
        shown = kind(f"the adapter can't be loaded: {_client_message(error)}", param="lora_id")
        return cls(ref.digest, isinstance(error, AdapterRejected), shown)


def _client_message(error: BaseException) -> str:
    """The message for clients, without the folder, which only the log names."""
    if isinstance(error, PunicaError):
        return error.message
    if isinstance(error, OSError) and error.filename:
        return f"{unreadable(error).message}; register it again, or ask the operator, whose log names the folder"
    return str(error)
