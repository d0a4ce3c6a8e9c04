"""Reads ranges of a file: from the page cache if it has the file, else past it, straight into the reader's memory.

A disk is then read in large pieces and nothing is copied twice. The page cache is asked once, for the file's first
bytes: a question in vain (RWF_NOWAIT) makes newer kernels read ahead by megabytes, which would be read twice.
"""

import errno
import os
from types import TracebackType

_NOWAIT: int | None = getattr(os, "RWF_NOWAIT", None)
_DIRECT: int | None = getattr(os, "O_DIRECT", None)
#: Direct reads have offsets, lengths and addresses in multiples of it, on every usual disk.
_BLOCK_BYTES = 4096
#: The file system, or the memory's address, does not allow this kind of reading.
_NOT_SO = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS)


class RangeReader:
    """One open file, for any number of threads. ``with`` closes it."""

    def __init__(self, descriptor: int) -> None:
        """Takes over the descriptor."""
        self._descriptor = descriptor
        #: The same file for direct reads; None if the page cache has it, or they don't work.
        self._direct: int | None = None

    def __enter__(self) -> "RangeReader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        os.close(self._descriptor)
        if self._direct is not None:
            os.close(self._direct)

    @property
    def is_direct(self) -> bool:
        """Whether ``read`` goes past the page cache."""
        return self._direct is not None

    def num_bytes(self) -> int:
        return os.fstat(self._descriptor).st_size

    def read_start(self, num_bytes: int) -> bytes:
        """The file's first bytes. Decides how ``read`` reads. Raises OSError."""
        if _NOWAIT is not None and _DIRECT is not None and not self._is_cached(num_bytes):
            try:
                self._direct = os.open(f"/proc/self/fd/{self._descriptor}", os.O_RDONLY | os.O_CLOEXEC | _DIRECT)
            except OSError:
                self._direct = None
        return os.pread(self._descriptor, num_bytes, 0)

    def read(self, memory: memoryview, offset: int) -> int:
        """Reads the file from ``offset``, a multiple of 4 KiB. The bytes read: fewer at its end. Raises OSError."""
        done = self._read_direct(self._direct, memory, offset) if self._direct is not None else 0
        while done < len(memory) and (num_bytes := os.preadv(self._descriptor, [memory[done:]], offset + done)):
            done += num_bytes
        return done

    def _is_cached(self, num_bytes: int) -> bool:
        """Whether the page cache has the file's start, or can't tell."""
        assert _NOWAIT is not None
        try:
            os.preadv(self._descriptor, [bytearray(num_bytes)], 0, _NOWAIT)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in _NOT_SO:
                raise
        return True

    @staticmethod
    def _read_direct(descriptor: int, memory: memoryview, offset: int) -> int:
        """Reads whole blocks, as far as that works."""
        done, whole = 0, len(memory) - len(memory) % _BLOCK_BYTES
        try:
            while done < whole and (num_bytes := os.preadv(descriptor, [memory[done:whole]], offset + done)):
                done += num_bytes
                if num_bytes % _BLOCK_BYTES:
                    break
        except OSError as error:
            if error.errno not in _NOT_SO:
                raise
        return done
