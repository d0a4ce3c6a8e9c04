"""The free list of one stretch of memory that is allocated in pieces of any size."""

from bisect import insort

#: Pieces start at multiples of it: page-aligned, and holes never too small to matter.
_ALIGNMENT_BYTES = 4096


class ByteArena:
    """First fit. Pieces of equal sizes replace each other without loss; neighbouring holes become one."""

    def __init__(self, num_bytes: int) -> None:
        self._num_bytes = num_bytes - num_bytes % _ALIGNMENT_BYTES
        #: (start, end) of each hole, in order.
        self._holes: list[tuple[int, int]] = [(0, self._num_bytes)] if self._num_bytes else []

    @property
    def used_bytes(self) -> int:
        return self._num_bytes - sum(end - start for start, end in self._holes)

    def could_fit(self, num_bytes: int) -> bool:
        """Whether the empty arena would have so much in one piece."""
        return _aligned(num_bytes) <= self._num_bytes

    def allocate(self, num_bytes: int) -> int | None:
        """Where a piece starts; None if no hole is large enough."""
        wanted = _aligned(num_bytes)
        for number, (start, end) in enumerate(self._holes):
            if end - start >= wanted:
                rest = [(start + wanted, end)] if end - start > wanted else []
                self._holes[number : number + 1] = rest
                return start
        return None

    def free(self, start: int, num_bytes: int) -> None:
        """Gives a piece back."""
        hole = (start, start + _aligned(num_bytes))
        insort(self._holes, hole)
        number = self._holes.index(hole)
        if number + 1 < len(self._holes) and self._holes[number + 1][0] == hole[1]:
            hole = (hole[0], self._holes.pop(number + 1)[1])
        if number and self._holes[number - 1][1] == hole[0]:
            number, hole = number - 1, (self._holes[number - 1][0], hole[1])
            self._holes.pop(number)
        self._holes[number] = hole


def arena_num_bytes(count: int, num_bytes: int) -> int:
    """Bytes of an arena for ``count`` pieces of ``num_bytes`` each."""
    return count * _aligned(num_bytes)


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
