"""GPUs that take requests, in the orders that placements ask for, and those that have gained room.

Placement must not scan a thousand GPUs to find one with room. So GPUs with a free place in their batch are grouped by
the size of their working set, and each group keeps an upper bound of its GPUs' room. A group whose bound is too low is
skipped at once; a search in vain lowers the bound. Room is counted in tokens and in LoRA pages.

GPUs whose places are all taken, but one of them not for long, stand in a row of their own, with such a bound too.
"""

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from operator import attrgetter

from punica_scheduler.core.adapter_holders import AdapterHolders
from punica_scheduler.core.adapter_users import AdapterUsers
from punica_scheduler.core.gpu import GpuRecord
from punica_scheduler.core.gpu_columns import ColumnSource, GpuColumns
from punica_scheduler.core.known_prefixes import KnownPrefixes
from punica_scheduler.core.request import RequestRecord
from punica_scheduler.core.room_bound import RoomBound
from punica_scheduler.core.typical_request import TypicalRequest
from punica_serve.errors.invariants import require

_by_uuid = attrgetter("uuid")


@dataclass(slots=True)
class _File:
    """The GPUs with working sets of one size, sorted by UUID."""

    gpus: list[GpuRecord] = field(default_factory=list)
    bound: RoomBound = field(default_factory=RoomBound)

    def walk(self, first: Sequence[GpuRecord]) -> Iterator[GpuRecord]:
        """All, from the highest UUID down, but for those that come ``first``."""
        if not first:
            return reversed(self.gpus)
        return chain(first, (gpu for gpu in reversed(self.gpus) if gpu not in first))


class GpuIndex:
    """GPUs that are not draining. Call ``update`` after every change of one of them."""

    def __init__(self) -> None:
        #: By UUID, full ones too.
        self._open: list[GpuRecord] = []
        #: By size of working set: those that have a free place in their batch.
        self._files: list[_File] = []
        #: Those whose next place becomes free soon, in the order in which this was told.
        self._ending: dict[GpuRecord, None] = {}
        self._ending_bound = RoomBound()
        #: Size under which a GPU of either kind is filed; its room and the pages that it needed when it was looked at
        #: last: while a stop is on its way, it may need fewer and have no more room.
        self._filed: dict[GpuRecord, tuple[int, int, int]] = {}
        #: The time of the newest event.
        self.now_ns = 0
        self.typical = TypicalRequest()
        self.prefixes = KnownPrefixes()
        self.holders = AdapterHolders()
        self._adapter_users = AdapterUsers()
        #: Figures of all open GPUs, for placements by cost.
        self._columns = GpuColumns(self._adapter_users)
        #: Those that may have room now for what they had no room for before.
        self.improved: set[GpuRecord] = set()

    def __len__(self) -> int:
        return len(self._open)

    def add(self, gpu: GpuRecord) -> None:
        """The GPU takes requests from now on."""
        insort(self._open, gpu, key=_by_uuid)
        self._columns.rebuild()
        self.update(gpu)

    def discard(self, gpu: GpuRecord) -> None:
        """The GPU takes no requests from now on."""
        index = bisect_left(self._open, gpu.uuid, key=_by_uuid)
        if self._open[index : index + 1] == [gpu]:
            del self._open[index]
            self._columns.rebuild()
            self._take_out(gpu)
        self.improved.discard(gpu)

    def update(self, gpu: GpuRecord, digest: str | None = None) -> None:
        """The GPU's working set or its room may have changed; nothing happens for one that takes no requests.

        ``digest`` is the adapter of the request that joined or left the working set.
        """
        if digest is not None and self._adapter_users.update(gpu, digest):
            self.touch(gpu)  # others of the adapter need no pages for it there any more
        self._columns.changed(gpu)
        filed = self._filed.get(gpu)
        if gpu.is_draining or (filed is None and gpu.is_full):
            return
        now = size, room, num_needed = _figures_of(gpu)
        if gpu.is_full:
            self._take_out(gpu)
            return
        if filed == now:
            return
        if filed is None or size != filed[0]:
            self._take_out(gpu)
            self._put_in(gpu)
        self._filed[gpu] = now
        if gpu.has_free_place:
            self._files[size].bound.include(gpu)
        else:
            self._ending_bound.include(gpu)
        if filed is None or size < filed[0] or room > filed[1] or num_needed < filed[2]:
            self.improved.add(gpu)

    def touch(self, gpu: GpuRecord) -> None:
        """The GPU may have room for what it had none for, though nothing that is filed says so."""
        if gpu in self._filed:
            self.improved.add(gpu)

    def take_improved(self) -> Collection[GpuRecord]:
        """Those that have improved since this was called last."""
        improved, self.improved = self.improved, set()
        return improved

    # -------------------------------------------------------------- orders

    def largest_first(self, record: RequestRecord) -> Iterator[GpuRecord]:
        """Those with a free place, and KvCache and LoRA pages for the request: the largest working set, then the
        highest UUID first.

        Among GPUs with working sets of one size, those that know the request's prefix come first, the longest prefix
        before the others. The index must not change while an iterator of it is used further.
        """
        return self._search(range(len(self._files) - 1, -1, -1), record)

    def smallest_first(self, record: RequestRecord) -> Iterator[GpuRecord]:
        """The same, the smallest working set first."""
        return self._search(range(len(self._files)), record)

    def _search(self, sizes: Iterable[int], record: RequestRecord) -> Iterator[GpuRecord]:
        """The same, by sizes of working sets in this order."""
        knowing, users = self.prefixes.knowing(record), self._adapter_users.of(record.digest)
        for size in sizes:
            file = self._files[size]
            if not file.gpus:
                continue
            first = [gpu for gpu in knowing if len(gpu.working_set) == size and gpu.has_free_place]
            yield from file.bound.search(partial(file.walk, first), record, users)

    def soonest_first(self, record: RequestRecord) -> Iterator[GpuRecord]:
        """Those without a free place whose next one becomes free soon, and with pages for the request, as above.

        The one that has told so first is first. The index must not change while an iterator of it is used further.
        """
        return self._ending_bound.search(self._ending.__iter__, record, self._adapter_users.of(record.digest))

    def by_uuid(self, start: int = 0) -> Iterator[GpuRecord]:
        """All, from the lowest UUID up, or from another place in that order and round to it."""
        yield from self._open[start:]
        yield from self._open[:start]

    def near(self, record: RequestRecord) -> Set[GpuRecord]:
        """GPUs that have the request's adapter, or whose worker has it in host memory; none for the base model."""
        return self._adapter_users.of(record.digest) | self.holders.of(record.digest)

    def columns(self, source: ColumnSource) -> GpuColumns:
        """The figures of all that a placement asks for, up to date, from the highest UUID down."""
        return self._columns.look(self._open, source)

    def _file_of(self, size: int) -> _File:
        while len(self._files) <= size:
            self._files.append(_File())
        return self._files[size]

    def _put_in(self, gpu: GpuRecord) -> None:
        if gpu.has_free_place:
            insort(self._file_of(len(gpu.working_set)).gpus, gpu, key=_by_uuid)
        else:
            self._ending[gpu] = None

    def _take_out(self, gpu: GpuRecord) -> None:
        filed = self._filed.pop(gpu, None)
        if filed is None:
            return
        if filed[0] < gpu.info.max_batch_size:
            gpus = self._files[filed[0]].gpus
            del gpus[bisect_left(gpus, gpu.uuid, key=_by_uuid)]
        else:
            del self._ending[gpu]

    def check_invariants(self, gpus: Collection[GpuRecord]) -> None:
        """Against all GPUs that have joined. AssertionError is a bug of ours."""
        self.prefixes.check_invariants(gpus)
        self.holders.check_invariants(gpus)
        self._adapter_users.check_invariants(gpus)
        require(self._open == sorted((gpu for gpu in gpus if not gpu.is_draining), key=_by_uuid), "not all are open")
        self._columns.check_invariants(self._open)
        with_place = {gpu: _figures_of(gpu) for gpu in self._open if not gpu.is_full}
        require(self._filed == with_place, "a GPU is filed as it was")
        ending = {gpu for gpu in with_place if not gpu.has_free_place}
        require(self._ending.keys() == ending, "other GPUs are about to have a place")
        require(all(map(self._ending_bound.covers, ending)), "less room is known than there soon is")
        for size, file in enumerate(self._files):
            expected = [gpu for gpu in self._open if gpu.has_free_place and len(gpu.working_set) == size]
            require(file.gpus == expected, f"the file of working sets of {size} is wrong")
            require(all(map(file.bound.covers, expected)), "a file knows less room than there is")


def _figures_of(gpu: GpuRecord) -> tuple[int, int, int]:
    """The size of its working set, its room, and the pages that it needs: see ``GpuRecord.has_room_for``."""
    return len(gpu.working_set), gpu.room, gpu.num_pages_needed
