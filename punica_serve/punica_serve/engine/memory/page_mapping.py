"""Maps shared memory that others have filled, before a process needs it: else its first uses take thousands of faults.

Imports no torch, so a process that only reads starts quickly.
"""

import ctypes
from collections.abc import Iterator

_MADV_POPULATE_READ = 22


def map_pages(address: int, num_bytes: int, part_bytes: int) -> Iterator[None]:
    """Maps a stretch of a shared mapping, for reading and writing, ``part_bytes`` at a time, without the GIL.

    ``address`` and ``part_bytes`` are multiples of pages. Ends early where the system can't: Linux can since 5.14.
    """
    advise = ctypes.CDLL(None).madvise
    for start in range(0, num_bytes, part_bytes):
        part = min(part_bytes, num_bytes - start)
        if advise(ctypes.c_void_p(address + start), ctypes.c_size_t(part), _MADV_POPULATE_READ):
            return
        yield
