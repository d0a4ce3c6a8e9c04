"""The hash of memory that fills from front to back, computed beside the filling when a thread has time."""

from concurrent.futures import Executor, Future
from contextlib import suppress
from typing import Protocol

import numpy as np
import numpy.typing as npt


class Hasher(Protocol):
    """One of hashlib's or xxhash's."""

    def update(self, data: memoryview, /) -> None: ...

    def digest(self) -> bytes: ...


class StreamHash:
    """One thread fills the memory and owns this. Threads of ``helpers``, if any is free, hash what it has filled.

    The owner's thread hashes what no helper has begun, so nothing here waits for a thread to become free, and no helper
    waits for bytes: a disk that hangs holds none.
    """

    def __init__(self, memory: npt.NDArray[np.uint8], hasher: Hasher, helpers: Executor | None = None) -> None:
        self._memory = memory
        self._helpers = helpers
        self._hasher = hasher
        self._num_filled = 0
        self._num_hashed = 0
        #: At most one at a time: while it runs, the hasher is its own.
        self._help: Future[None] | None = None

    def fill(self, num_bytes: int) -> None:
        """The first ``num_bytes`` of the memory are there, and don't change any more."""
        self._num_filled = num_bytes
        if self._helpers is not None and (self._help is None or self._help.done()):
            with suppress(RuntimeError):  # its owner was closed
                self._help = self._helpers.submit(self._hash)

    def digest(self) -> bytes:
        """The hash of all that was filled."""
        if self._help is not None and not self._help.cancel():
            self._help.result()
        self._hash()
        return self._hasher.digest()

    def _hash(self) -> None:
        """Hashes in few large pieces: each releases the GIL, and must get it back from the step loop."""
        while (end := self._num_filled) > self._num_hashed:
            self._hasher.update(self._memory[self._num_hashed : end].data)
            self._num_hashed = end
