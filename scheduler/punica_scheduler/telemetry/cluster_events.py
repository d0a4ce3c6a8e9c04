"""Recent cluster events that charts mark: GPUs that joined or left, requests that moved, the start."""

from collections import deque
from dataclasses import dataclass

from punica_serve.protocol import Mark, MarkKind

#: Older ones are forgotten.
MAX_MARKS = 256
#: GPUs that an entry names: it stays small in a cluster of thousands.
MAX_GPUS = 256
#: Events of one kind within this time are one entry with a count.
_MERGE_NS = 1_000_000_000


@dataclass(slots=True)
class _Growing:
    number: int
    at_ns: int
    kind: MarkKind
    gpu_uuids: set[str]
    count: int
    #: The entry as it was told, until it grows.
    told: Mark | None = None

    def tell(self) -> Mark:
        if self.told is None:
            self.told = Mark(self.number, self.at_ns, self.kind, tuple(sorted(self.gpu_uuids)), self.count)
        return self.told


class ClusterEvents:
    """The newest, each numbered once."""

    def __init__(self) -> None:
        self._marks: deque[_Growing] = deque(maxlen=MAX_MARKS)
        self._newest: dict[MarkKind, _Growing] = {}
        self._num_marks = 0

    def add(self, kind: MarkKind, gpu_uuid: str | None, now_ns: int) -> None:
        """Adds an event of a kind, on this GPU if on any."""
        mark = self._newest.get(kind)
        if mark is not None and now_ns < mark.at_ns + _MERGE_NS:
            mark.count, mark.told = mark.count + 1, None
        else:
            self._num_marks += 1
            self._newest[kind] = mark = _Growing(self._num_marks, now_ns, kind, set(), 1)
            self._marks.append(mark)
        if gpu_uuid is not None and len(mark.gpu_uuids) < MAX_GPUS:
            mark.gpu_uuids.add(gpu_uuid)

    def snapshot(self) -> tuple[Mark, ...]:
        """Oldest first."""
        return tuple([mark.tell() for mark in self._marks])
