"""The reads of one packed file by several threads, of a process or of a worker.

The open file and each chunk that was read are records in a lane: a socket that one job has at a time. After the last
chunk's record, or that of a failure, or at the lane's end, a job writes to its memory no more.

Imports no torch, so a process that only reads starts quickly.
"""

import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import Any

from punica_serve.engine.adapters.packed_chunk import Chunk, PackedFileInvalid, read_checked
from punica_serve.engine.adapters.packed_header import PackedName, open_chunks
from punica_serve.engine.adapters.range_reader import RangeReader
from punica_serve.process.private_files import open_own_file

log = logging.getLogger(__name__)

#: A chunk's number, an error, and when the chunk was begun, read and checked, by ``time.perf_counter`` in seconds.
RECORD = Struct("<iiddd")
#: In place of a chunk's number: the file was opened, and is read through the page cache or past it; the last record of
#: an adapter that can't be read.
OPENED, OPENED_DIRECT, FAILED = -1, -2, -3
#: Errors beside those of the system: the file is damaged, or another one.
INVALID = -1


class ChunkJob:
    """One adapter that is read. The last of its threads ends it; later ones read nothing."""

    def __init__(
        self,
        path: Path,
        name: PackedName,
        memory: memoryview,
        lane: socket.socket,
        *,
        piece_bytes: int | None = None,
        numbers: Collection[int] | None = None,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        """``piece_bytes``: as for ``read_checked``. ``numbers``: of the chunks that are read; None for all.

        ``on_end`` is called once, when all that was begun has ended.
        """
        self._path = path
        self._name = name
        self._memory = memory
        self._lane = lane
        self._piece_bytes = piece_bytes
        self._numbers = numbers
        self._on_end = on_end
        self._file: RangeReader | None = None
        self._waiting: deque[tuple[int, Chunk]] = deque()
        self._error = 0
        self._is_stopped = self._has_ended = False
        self._num_running = 0
        #: Guards the two above.
        self._lock = threading.Lock()

    def begin(self, threads: ThreadPoolExecutor, num_threads: int) -> None:
        """Opens the file, and reads its chunks on this thread and others."""
        if not self._enter():
            return
        self._try(self._open)
        for _ in range(min(num_threads, len(self._waiting)) - 1):
            submit(threads, self._join)
        self._run()

    def stop(self) -> None:
        """No chunk is begun any more."""
        self._is_stopped = True
        if self._enter():  # ends it, unless others are at it
            self._leave()

    def _open(self) -> None:
        self._file = RangeReader(open_own_file(self._path))
        chunks = enumerate(open_chunks(self._file, self._name, self._memory))
        self._waiting.extend(each for each in chunks if self._numbers is None or each[0] in self._numbers)
        opened_s = time.perf_counter()
        self._record(OPENED_DIRECT if self._file.is_direct else OPENED, 0, opened_s, opened_s, opened_s)

    def _join(self) -> None:
        """Reads along, unless the job is over: its memory and its lane may be another's by now."""
        if self._enter():
            self._run()

    def _run(self) -> None:
        """Reads chunks until none is left."""
        self._try(self._read_chunks)
        self._leave()

    def _read_chunks(self) -> None:
        while not self._is_stopped:
            try:
                number, chunk = self._waiting.popleft()
            except IndexError:
                return
            assert self._file is not None, "else no chunk waits"
            begun_s = time.perf_counter()
            read_s = begun_s + read_checked(self._file, chunk, self._piece_bytes)
            self._record(number, 0, begun_s, read_s, time.perf_counter())

    def _try(self, part: Callable[[], None]) -> None:
        """After an error no thread begins another chunk."""
        try:
            part()
        except PackedFileInvalid:
            self._fail(INVALID)
        except OSError as error:
            self._fail(error.errno or INVALID)
        except Exception:
            log.exception("a packed adapter can't be read")
            self._fail(INVALID)

    def _fail(self, error: int) -> None:
        self._is_stopped = True
        self._error = self._error or error

    def _enter(self) -> bool:
        with self._lock:
            self._num_running += not self._has_ended
            return not self._has_ended

    def _leave(self) -> None:
        with self._lock:
            self._num_running -= 1
            self._has_ended = is_last = not self._num_running
        if is_last:
            self._end()

    def _end(self) -> None:
        """No thread writes to the memory any more. If all chunks were read, the worker knows from their records."""
        with suppress(OSError):  # the worker is gone
            if self._error:
                self._record(FAILED, self._error, 0.0, 0.0, 0.0)
        if self._file is not None:
            self._file.close()
        self._on_end()

    def _record(self, number: int, error: int, begun_s: float, read_s: float, checked_s: float) -> None:
        """Never waits: a socket has room for the records of all chunks. Raises OSError if the worker is gone."""
        self._lane.send(RECORD.pack(number, error, begun_s, read_s, checked_s))


def submit(threads: ThreadPoolExecutor, part: Callable[..., None], *arguments: Any) -> None:
    """Has a thread run it. Where no new one can be started, those that there are do, in their turn."""
    with suppress(RuntimeError):  # the part was queued before
        threads.submit(part, *arguments)
