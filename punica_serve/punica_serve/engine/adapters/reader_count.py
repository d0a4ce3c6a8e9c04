"""How many threads read packed files for a worker: as many as its link takes from, while half of its cores stay free.

A link of today takes 50 GB/s, and a thread reads and checks 3 GB/s of the page cache while others do: 16 of them fill
a link, and four keep a disk busy. The other cores are for the steps, and for adapters that are packed. All ranks of a
group load an adapter at once, so they share the cores.
"""

from punica_serve.engine.adapters.packed_header import MAX_READERS

_MIN_READERS, _CORES_SHARE = 4, 0.5


def reader_count(num_cores: int, num_ranks: int) -> int:
    """``num_cores``: what the worker may use. ``num_ranks``: of its group."""
    return max(_MIN_READERS, min(MAX_READERS, int(_CORES_SHARE * num_cores / num_ranks)))
