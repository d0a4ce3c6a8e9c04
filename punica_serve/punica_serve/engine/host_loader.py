"""Brings adapters to host memory: store -> the host's disk -> host cache, each at most once at a time.

What a request waits for starts at once. What is brought ahead of use waits in a line for a free place, of which there
are few, so it never takes all threads. Files of a remote store are fetched by someone else (a worker's supervisor), on
no thread from here: however slow the store is, those whose files are on the host don't wait for it.
"""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from punica_serve.engine.adapter_reader import AdapterReader
from punica_serve.engine.host_cache import HostCache, HostCopy
from punica_serve.errors import StoreUnavailable
from punica_serve.protocol import AdapterRef

#: Brings an adapter's files to this host's disk, where they may be dropped at any time. AdapterRejected: they can't be
#: right, and nobody will do better.
Fetch = Callable[[AdapterRef], Future[Path]]

#: Of the readers; the others stay free for adapters that running requests wait for.
_AHEAD_SHARE = 0.75
#: Fetches ahead of use: they cost no thread, but the store's bandwidth.
_MAX_FETCHED_AHEAD = 8
#: In line; whatever comes on top is not taken.
_MAX_IN_LINE = 4096
#: Adapters that were prefetched and not used since; beyond it the first are forgotten, and may be read in vain again.
_MAX_REMEMBERED = 4096
#: A folder may be dropped from the disk between its fetch and its reading, but hardly so often.
_MAX_FETCHES = 3


@dataclass(frozen=True, slots=True)
class Arrival:
    """An adapter that has come to host memory, where it is held once, or has not."""

    ref: AdapterRef
    result: HostCopy | BaseException
    #: As it was queued.
    for_device: bool


@dataclass(slots=True)
class _Work:
    ref: AdapterRef
    for_device: bool = False
    #: A request waits for it.
    is_wanted: bool = False
    #: It goes again as soon as it has come.
    is_forgotten: bool = False
    #: Where a remote adapter's files are on this host.
    folder: Path | None = None
    num_fetches: int = 0
    #: The line whose place it takes, of what is brought ahead of use.
    line: "_Line | None" = None
    future: "Future[Path] | Future[HostCopy] | None" = None

    @property
    def needs_fetch(self) -> bool:
        return self.folder is None and "://" in self.ref.uri


class _Line:
    """Work that is done ahead of use, first come, first served, so much at a time."""

    def __init__(self, max_under_way: int) -> None:
        self._max_under_way = max_under_way
        self.num_under_way = 0
        self.waiting: dict[str, _Work] = {}

    @property
    def has_place(self) -> bool:
        return self.num_under_way < self._max_under_way


class HostLoader:
    """All methods run on one thread; ``poll`` takes what others have finished."""

    def __init__(
        self, host_cache: HostCache, reader: AdapterReader, fetch: Fetch, on_progress: Callable[[], None]
    ) -> None:
        self._host_cache = host_cache
        self._reader = reader
        self._fetch = fetch
        self._on_progress = on_progress
        self._under_way: dict[str, _Work] = {}
        self._reads = _Line(int(_AHEAD_SHARE * reader.num_threads))
        self._fetches = _Line(_MAX_FETCHED_AHEAD)
        self._prefetched: dict[str, None] = {}

    @property
    def is_idle(self) -> bool:
        return not (self._under_way or self._reads.waiting or self._fetches.waiting)

    def get(self, ref: AdapterRef) -> HostCopy | None:
        """The adapter, held once more, if it is here; else it arrives as soon as it can be brought."""
        self._prefetched.pop(ref.digest, None)
        copy = self._host_cache.get(ref.digest)
        if copy is None:
            work = self._under_way.get(ref.digest) or self._leave_line(ref.digest) or _Work(ref)
            work.is_wanted, work.is_forgotten = True, False
            if work.future is None:
                self._start(work)
        return copy

    def prefetch(self, ref: AdapterRef) -> None:
        """Brings an adapter that will be used soon: a hint, cheap to repeat.

        Ignored while enough others are under way. Whatever is wrong with it is told when it is used.
        """
        work = _Work(ref)
        if ref.digest in self._prefetched or not self._line_of(work).has_place:
            return
        self._prefetched[ref.digest] = None
        if len(self._prefetched) > _MAX_REMEMBERED:
            del self._prefetched[next(iter(self._prefetched))]
        if not self._has(ref.digest):
            self._join_line(work)

    def queue(self, ref: AdapterRef, *, for_device: bool) -> bool:
        """Brings an adapter when there is a place for it. False, and nothing is done, if too many wait already."""
        if (work := self._work(ref.digest)) is not None:
            work.is_forgotten = False
            work.for_device |= for_device
            return True
        if len(self._reads.waiting) + len(self._fetches.waiting) >= _MAX_IN_LINE:
            return False
        self._join_line(_Work(ref, for_device=for_device))
        return True

    def forget(self, digest: str) -> None:
        """Frees the adapter's host memory, or will when what is under way has ended."""
        self._prefetched.pop(digest, None)
        self._leave_line(digest)
        if (work := self._under_way.get(digest)) is not None:
            work.is_forgotten = True
        self._host_cache.forget(digest)

    def poll(self) -> list[Arrival]:
        """What has come, and what can't be brought, since the last one. Starts what there is a place for now."""
        arrivals = []
        for work in [work for work in self._under_way.values() if work.future is not None and work.future.done()]:
            arrival = self._finish(work)
            if arrival is not None:
                arrivals.append(arrival)
        self._start_waiting()
        return arrivals

    def close(self) -> None:
        """Starts nothing more. Does not wait for what is under way: a disk may hang."""
        self._reader.close()

    def _has(self, digest: str) -> bool:
        return digest in self._host_cache or self._work(digest) is not None

    def _work(self, digest: str) -> _Work | None:
        return (
            self._under_way.get(digest) or self._reads.waiting.get(digest) or self._fetches.waiting.get(digest) or None
        )

    def _line_of(self, work: _Work) -> _Line:
        return self._fetches if work.needs_fetch else self._reads

    def _join_line(self, work: _Work) -> None:
        self._line_of(work).waiting[work.ref.digest] = work
        self._start_waiting()

    def _leave_line(self, digest: str) -> _Work | None:
        return self._reads.waiting.pop(digest, None) or self._fetches.waiting.pop(digest, None)

    def _start_waiting(self) -> None:
        for line in (self._fetches, self._reads):
            while line.waiting and line.has_place:
                work = line.waiting.pop(next(iter(line.waiting)))
                work.line = line
                line.num_under_way += 1
                self._start(work)

    def _start(self, work: _Work) -> None:
        self._under_way[work.ref.digest] = work
        if work.needs_fetch:
            work.num_fetches += 1
            work.future = self._fetch(work.ref)
        else:
            local = work.ref if work.folder is None else replace(work.ref, uri=str(work.folder))
            work.future = self._reader.start(local)
        work.future.add_done_callback(lambda _: self._on_progress())

    def _finish(self, work: _Work) -> Arrival | None:
        """Takes the result of what is done. None: there is more to do, or nobody wants it any more."""
        assert work.future is not None
        error = work.future.exception()
        result = error or work.future.result()
        work.future = None
        del self._under_way[work.ref.digest]
        if work.line is not None:
            work.line.num_under_way -= 1
            work.line = None
        if isinstance(result, HostCopy) and work.is_forgotten:
            self._host_cache.release(result)
            self._host_cache.forget(work.ref.digest)
        if work.is_forgotten:
            return None
        if isinstance(result, Path):
            work.folder = result
        elif isinstance(result, FileNotFoundError) and work.folder is not None and work.num_fetches < _MAX_FETCHES:
            work.folder = None  # dropped from the disk meanwhile
        else:
            return Arrival(work.ref, result, work.for_device)
        if work.is_wanted:
            self._start(work)
        else:
            self._join_line(work)
        return None


def no_fetch(ref: AdapterRef) -> Future[Path]:
    """For an engine without a supervisor."""
    future: Future[Path] = Future()
    future.set_exception(StoreUnavailable(f"{ref.uri}: only a runner's workers get adapters from a store"))
    return future
