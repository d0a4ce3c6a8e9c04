"""Prefetch hints: while a request waits for a GPU, GPUs that may run it bring its adapter to host memory.

A hint is no promise: the request does not wait for it, may run elsewhere, and loses nothing with it. When no GPU has
room, nobody knows which one will be next, so a hint goes to the GPU that placement would try first, if there is one,
and to those that the adapter's digest draws, which spreads the load.

Only requests that have never run have hints: the adapter of another one has been loaded, or may have killed a worker.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterator
from itertools import chain, islice
from zlib import crc32

from punica_scheduler.core.actions import Warm
from punica_scheduler.core.fleet import Fleet
from punica_scheduler.core.gpu import GpuRecord
from punica_scheduler.core.outcome import Outcome
from punica_scheduler.core.placement import Placement
from punica_scheduler.core.request import RequestRecord
from punica_serve.errors.invariants import require

#: GPUs that are told of one request.
GPUS_PER_REQUEST = 2
#: Hints of one GPU whose requests still wait, and their mean over all GPUs. The mean bounds how far into the queue
#: hints reach: what is prefetched too early takes the place of what is used.
MAX_PER_GPU = 32
MEAN_PER_GPU = 16
#: Requests that are looked at after one event, and GPUs for each of them, so that no event takes long.
_MAX_REQUESTS = 8
_MAX_GPUS = 8


class PrefetchHints:
    """Requests that wait, and which GPUs were told of them. All is O(1) for each request."""

    def __init__(self, fleet: Fleet, placement: Placement) -> None:
        self._fleet = fleet
        self._placement = placement
        #: By id, first come, first served: those that wait for their hints.
        self._unhinted: OrderedDict[str, RequestRecord] = OrderedDict()
        #: By id: the GPUs that were told. None is empty.
        self._gpus: dict[str, list[GpuRecord]] = {}
        #: The same, the other way round: by GPU and digest, the request that it was told for. None is empty.
        self._hints: dict[GpuRecord, dict[str, RequestRecord]] = {}
        self._num_hints = 0

    def queued(self, record: RequestRecord) -> None:
        """The request waits for a GPU, perhaps only until this event has placed it."""
        if record.digest is not None and record.last_gpu_uuid is None:
            self._unhinted[record.request_id] = record

    def left_queue(self, record: RequestRecord) -> None:
        """The request was placed, or has ended."""
        if record.digest is None or self._unhinted.pop(record.request_id, None) is not None:
            return
        for gpu in self._gpus.pop(record.request_id, ()):
            self._take_back(gpu, record.digest)

    def lost(self, gpu: GpuRecord) -> None:
        """The GPU is gone or draining: the requests that only it was told of are the next to have hints."""
        for digest, record in list(self._hints.get(gpu, {}).items()):
            self._take_back(gpu, digest)
            others = self._gpus[record.request_id]
            others.remove(gpu)
            if not others:
                del self._gpus[record.request_id]
                self._unhinted[record.request_id] = record
                self._unhinted.move_to_end(record.request_id, last=False)

    def give(self, outcome: Outcome) -> None:
        """Tells GPUs of requests that this event has not placed."""
        if not self._unhinted:  # as after most events
            return
        for _ in range(min(_MAX_REQUESTS, len(self._unhinted))):
            if self._num_hints >= MEAN_PER_GPU * len(self._fleet.index):
                return
            _, record = self._unhinted.popitem(last=False)
            self._hint(record, outcome)

    def _hint(self, record: RequestRecord, outcome: Outcome) -> None:
        adapter = record.request.adapter
        assert adapter is not None
        gpus = [gpu for gpu in self._likely(record, adapter.digest) if self._lacks(gpu, adapter.digest)]
        if gpus:
            self._gpus[record.request_id] = gpus
        for gpu in gpus:
            self._hints.setdefault(gpu, {})[adapter.digest] = record
            self._num_hints += 1
            outcome.actions.append(Warm(gpu.uuid, adapter, None, host_only=True))

    def _likely(self, record: RequestRecord, digest: str) -> Iterator[GpuRecord]:
        """GPUs that could run it, first the one that placement would try first."""
        index = self._fleet.index
        first = islice(self._placement.candidates(record, index), 1)
        drawn = index.by_uuid(crc32(digest.encode()) % max(1, len(index)))
        asked = dict.fromkeys(islice(chain(first, drawn), _MAX_GPUS))
        return islice((gpu for gpu in asked if gpu.capacity.could_run(record)), GPUS_PER_REQUEST)

    def _lacks(self, gpu: GpuRecord, digest: str) -> bool:
        """Whether the GPU neither has the adapter nor was told of it, and may have one more hint."""
        hints = self._hints.get(gpu, {})
        is_known = digest in hints or digest in gpu.cached or digest in gpu.adapters.refcounts or digest in gpu.resident
        return not is_known and len(hints) < MAX_PER_GPU

    def _take_back(self, gpu: GpuRecord, digest: str) -> None:
        hints = self._hints[gpu]
        del hints[digest]
        self._num_hints -= 1
        if not hints:
            del self._hints[gpu]

    def check_invariants(self, queued: Collection[RequestRecord]) -> None:
        """Against all requests that wait. AssertionError is a bug of ours."""
        ids = {record.request_id for record in queued}
        require(self._unhinted.keys() | self._gpus.keys() <= ids, "a hint for a request that does not wait")
        require(self._unhinted.keys().isdisjoint(self._gpus), "a request has its hints and waits for them")
        told = {(id_, gpu.uuid) for id_, gpus in self._gpus.items() for gpu in gpus}
        hints = [(r.request_id, gpu.uuid) for gpu, records in self._hints.items() for r in records.values()]
        require(sorted(told) == sorted(hints) and len(hints) == self._num_hints, "hints are miscounted")
        for gpu, records in self._hints.items():
            require(self._fleet.gpus.get(gpu.uuid) is gpu and not gpu.is_draining, f"{gpu.uuid} was told, and is gone")
            require(0 < len(records) <= MAX_PER_GPU, f"{gpu.uuid} has {len(records)} hints")
