"""Lists the members of owners that have different numbers of them: tiles of segments, splits of tiles."""

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]


def enumerate_members(counts: Indices) -> tuple[Indices, Indices]:
    """(owner, index within the owner) of every member, for owners with ``counts`` members each."""
    owner = np.repeat(np.arange(len(counts)), counts)
    return owner, np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
