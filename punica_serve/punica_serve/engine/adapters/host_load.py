"""The host loader's record of one load to host memory, and its states.

   ┌───────────────────────┐    ┌─▶ late ─┐
   ▼                       ▼    │         ▼
queued ◀──▶ fetching ◀──▶ reading ──▶ loaded
               └─────────────────────────▲

Files that are on this host are not fetched. Those that are fetched may be packed as they come, and are not read then.
Files that were evicted from its disk before they were read are fetched again. Before each step, a prefetch is queued,
and a load that a request waits for is not. Each step may fail, and all but ended loads are dropped when the adapter is
evicted. A read that does not end, as on a disk that hangs, is late: its requests fail, and so do later ones, until it
ends after all. So is packing that does not end after its fetch has; files that it leaves are read then.
"""

from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from msgspec.structs import replace

from punica_serve.engine.adapters.host_cache import HostCopy
from punica_serve.engine.adapters.load_trace import LoadPhase, LoadTrace
from punica_serve.engine.adapters.page_stream import PageStream
from punica_serve.errors.invariants import require
from punica_serve.protocol import AdapterRef

#: A read on a thread is late after so long, and the time of its bytes on the slowest disk that is worth waiting for.
_READ_TIMEOUT_S, _SLOWEST_BYTES_PER_S = 30.0, 10e6
#: Fetches of one adapter: its folder may be evicted from the disk before it is read, but hardly so often.
_MAX_FETCHES = 3


class LoadState(Enum):
    #: It waits for a slot, or for its loader to start it.
    QUEUED = "queued"
    #: Its files are fetched to this host's disk, and packed as they come if a thread is free.
    FETCHING = "fetching"
    #: A thread reads its files into host memory.
    READING = "reading"
    #: It is read, or packed behind its fetch, for longer than anybody waits.
    LATE = "late"
    LOADED = "loaded"
    FAILED = "failed"
    #: The adapter was evicted meanwhile.
    DROPPED = "dropped"


TRANSITIONS: dict[LoadState, frozenset[LoadState]] = {
    LoadState.QUEUED: frozenset({LoadState.FETCHING, LoadState.READING, LoadState.DROPPED}),
    LoadState.FETCHING: frozenset(
        {
            LoadState.READING,
            LoadState.QUEUED,
            LoadState.LATE,
            LoadState.LOADED,
            LoadState.FAILED,
            LoadState.DROPPED,
        }
    ),
    LoadState.READING: frozenset(
        {
            LoadState.FETCHING,
            LoadState.QUEUED,
            LoadState.LATE,
            LoadState.LOADED,
            LoadState.FAILED,
            LoadState.DROPPED,
        }
    ),
    LoadState.LATE: frozenset(
        {LoadState.READING, LoadState.QUEUED, LoadState.LOADED, LoadState.FAILED, LoadState.DROPPED}
    ),
    LoadState.LOADED: frozenset(),
    LoadState.FAILED: frozenset(),
    LoadState.DROPPED: frozenset(),
}


@dataclass(slots=True, eq=False)
class HostLoad:
    """An adapter on its way to host memory."""

    ref: AdapterRef
    #: It goes on to the device.
    for_device: bool = False
    state: LoadState = LoadState.QUEUED
    #: A request waits for it.
    is_needed: bool = False
    #: It is dropped as soon as the step under way has ended.
    is_unwanted: bool = False
    #: The files of a remote adapter on this host.
    folder: Path | None = None
    num_fetches: int = 0
    #: Since when a thread alone is waited for, by a monotonic clock, as far as ``is_late`` has noticed.
    reads_since_s: float | None = None
    #: The step under way, while FETCHING, READING or LATE.
    future: Future[Path] | Future[HostCopy] | Future[Path | HostCopy] | None = None
    #: The pages on the device that are filled while it is read.
    stream: PageStream | None = None
    #: Where its time goes, also before a request waits for it.
    trace: LoadTrace = field(init=False)

    def __post_init__(self) -> None:
        self.trace = LoadTrace(self.ref.digest)

    @property
    def needs_fetch(self) -> bool:
        return self.folder is None and "://" in self.ref.uri

    @property
    def local_ref(self) -> AdapterRef:
        """The adapter with the folder on this host."""
        return self.ref if self.folder is None else replace(self.ref, uri=str(self.folder))

    @property
    def is_step_done(self) -> bool:
        return self.future is not None and self.future.done()

    @property
    def complete_stream(self) -> PageStream | None:
        return self.stream if self.stream is not None and self.stream.is_complete else None

    @property
    def may_fetch_again(self) -> bool:
        return self.state is LoadState.READING and self.folder is not None and self.num_fetches < _MAX_FETCHES

    def is_late(self, now_s: float) -> bool:
        """Whether a thread alone is waited for, for too long. To be asked from time to time."""
        if self.reads_since_s is None and self.future is not None and self.future.running():
            self.reads_since_s = now_s
        timeout_s = _READ_TIMEOUT_S + self.ref.num_bytes / _SLOWEST_BYTES_PER_S
        return self.reads_since_s is not None and now_s - self.reads_since_s > timeout_s

    # -------------------------------------------------------------- changes, which no other class makes

    def need(self) -> None:
        """A request waits for it."""
        self.is_needed, self.is_unwanted = True, False

    def want(self, *, for_device: bool) -> None:
        """Records that it is prefetched once more."""
        self.is_unwanted = False
        self.for_device |= for_device

    def mark_unwanted(self) -> None:
        self.is_unwanted = True

    def begin_fetch(self, future: Future[Path] | Future[Path | HostCopy]) -> None:
        self._become(LoadState.FETCHING)
        self.num_fetches += 1
        self.future, self.reads_since_s = future, None

    def begin_read(self, future: Future[HostCopy], stream: PageStream | None = None) -> None:
        self._become(LoadState.READING)
        self.future, self.stream, self.reads_since_s = future, stream, None

    def cancel(self) -> bool:
        """Whether no thread has begun with its step, and none will."""
        return self.future is not None and self.future.cancel()

    def give_up(self) -> bool:
        """Gives the read up. Returns whether anybody waited for it."""
        was_needed, self.is_needed = self.is_needed, False
        if self.state is not LoadState.LATE:
            self._become(LoadState.LATE)
            if self.stream is not None:
                self.stream.abandon()
                self.stream = None
        return was_needed

    def set_folder(self, folder: Path | None) -> None:
        """Sets the folder of its files; None if they were evicted from the disk."""
        self.folder = folder
        if folder is not None:
            self.trace.end(LoadPhase.FETCHING)

    def requeue(self) -> None:
        """Queues its next step for a slot."""
        self._become(LoadState.QUEUED)
        self.future = None

    def end(self, state: LoadState) -> None:
        self._become(state)
        self.future = None
        self.trace.end(LoadPhase.STAGING)

    def _become(self, state: LoadState) -> None:
        """Moves to another state. Raises InvariantBroken for what ``TRANSITIONS`` does not allow; changes nothing."""
        require(
            state in TRANSITIONS[self.state],
            f"the load of adapter {self.ref.digest} is {self.state.value} and can't become {state.value}",
        )
        self.state = state


class PrefetchQueue:
    """Prefetches, first come, first served, a limited number at a time."""

    def __init__(self, max_running: int) -> None:
        self._max_running = max_running
        self._running: set[str] = set()
        self.waiting: dict[str, HostLoad] = {}

    @property
    def has_room(self) -> bool:
        return len(self._running) < self._max_running

    def append(self, load: HostLoad) -> None:
        self.waiting[load.ref.digest] = load

    def remove(self, digest: str) -> HostLoad | None:
        return self.waiting.pop(digest, None)

    def take_next(self) -> HostLoad:
        """Returns the first that waits, which takes a slot until ``free_slot``."""
        load = self.waiting.pop(next(iter(self.waiting)))
        self._running.add(load.ref.digest)
        return load

    def free_slot(self, digest: str) -> None:
        """Ignored for a load that has no slot here."""
        self._running.discard(digest)
