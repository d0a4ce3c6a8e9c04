"""A process that reads and checks chunks of packed files for a worker, straight into the memory of its host cache.

Its threads share no GIL with the worker's step loop. A job is one message, which names the file and a lane: a socket
that one job has at a time. The open file and each chunk that was read are records there. After the last chunk's record,
or that of a failure, or at the lane's end, this process writes to the job's memory no more.
"""

import ctypes
import mmap
import os
import socket
import sys
import threading
import time
from argparse import ArgumentParser, Namespace
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import Any

import msgspec

from punica_serve.engine.adapters.packed_chunk import Chunk, read_checked
from punica_serve.engine.adapters.packed_header import PackedName, open_chunks
from punica_serve.engine.adapters.range_reader import RangeReader
from punica_serve.engine.memory.page_mapping import map_pages
from punica_serve.process.parent_death import end_with_parent
from punica_serve.process.private_files import open_own_file

MAX_MESSAGE_BYTES = 1 << 16
#: A chunk's number, an error, and when the chunk was begun, read and checked, by ``time.perf_counter`` in seconds.
RECORD = Struct("<iiddd")
#: In place of a chunk's number: the file was opened, and is read through the page cache or past it; the last record of
#: an adapter that can't be read.
OPENED, OPENED_DIRECT, FAILED = -1, -2, -3
#: Errors beside those of the system: the file is damaged, or another one.
INVALID = -1
#: A core sums so much from its own cache, where it has just read it to.
_PIECE_BYTES = 512 << 10
_NICE = 19
_MAPPED_BYTES = 64 << 20


class ReadJob(msgspec.Struct, frozen=True, array_like=True):
    """One adapter to be read."""

    #: The number of the socket where records go.
    lane: int
    #: As the system has it: no text where a folder's name is none.
    path: bytes
    name: PackedName
    #: Where the adapter lies in the file of the host cache's memory.
    offset: int
    num_bytes: int


class _Reads:
    """The reads of one job, which several threads share. The last of them ends it; later ones read nothing."""

    def __init__(self, job: ReadJob, memory: memoryview, answers: socket.socket) -> None:
        """``memory``: of ``num_bytes``."""
        self._job = job
        self._memory = memory
        self._answers = answers
        self._file: RangeReader | None = None
        self._waiting: deque[tuple[int, Chunk]] = deque()
        self._num_running = 1
        self._error = 0
        self._lock = threading.Lock()

    def begin(self, threads: ThreadPoolExecutor, num_threads: int) -> None:
        """Opens the file, and reads its chunks on this thread and others."""
        self._try(self._open)
        for _ in range(min(num_threads, len(self._waiting)) - 1):
            _submit(threads, self._join)
        self._run()

    def _open(self) -> None:
        self._file = RangeReader(open_own_file(Path(os.fsdecode(self._job.path))))
        self._waiting.extend(enumerate(open_chunks(self._file, self._job.name, self._memory)))
        opened_s = time.perf_counter()
        self._answer(OPENED_DIRECT if self._file.is_direct else OPENED, 0, opened_s, opened_s, opened_s)

    def _join(self) -> None:
        """Reads along, unless the job is over: its memory and its lane may be another's by now."""
        with self._lock:
            if not self._num_running:
                return
            self._num_running += 1
        self._run()

    def _run(self) -> None:
        """Reads chunks until none is left."""
        self._try(self._read_chunks)
        with self._lock:
            self._num_running -= 1
            is_last = not self._num_running
        if is_last:
            self._end()

    def _read_chunks(self) -> None:
        while True:
            try:
                number, chunk = self._waiting.popleft()
            except IndexError:
                return
            assert self._file is not None, "else no chunk waits"
            begun_s = time.perf_counter()
            read_s = begun_s + read_checked(self._file, chunk, _PIECE_BYTES)
            self._answer(number, 0, begun_s, read_s, time.perf_counter())

    def _try(self, part: Callable[[], None]) -> None:
        """After an error no thread begins another chunk."""
        try:
            part()
        except Exception as error:
            self._waiting.clear()
            self._error = self._error or (error.errno if isinstance(error, OSError) else None) or INVALID

    def _end(self) -> None:
        """No thread writes to the memory any more. If all chunks were read, the worker knows from their records."""
        if self._error:
            self._answer(FAILED, self._error, 0.0, 0.0, 0.0)
        if self._file is not None:
            self._file.close()

    def _answer(self, number: int, error: int, begun_s: float, read_s: float, checked_s: float) -> None:
        """Never waits: a socket has room for the records of all chunks. Raises OSError if the worker is gone."""
        self._answers.send(RECORD.pack(number, error, begun_s, read_s, checked_s))


def main(arguments: list[str]) -> None:
    options = _parse(arguments)
    end_with_parent()
    mapping = mmap.mmap(options.memory, 0)
    memory, control = memoryview(mapping), socket.socket(fileno=options.control)
    lanes = [socket.socket(fileno=fd) for fd in options.lanes]
    if options.map:
        threading.Thread(target=_map, args=(mapping,), daemon=True).start()
    threads = ThreadPoolExecutor(options.threads)
    threads.submit(int).result()  # one thread at least, or this process ends before it takes a job
    with suppress(ConnectionError):  # the worker may be gone already
        control.send(b"r")
        while message := control.recv(MAX_MESSAGE_BYTES):
            job = msgspec.msgpack.decode(message, type=ReadJob)
            reads = _Reads(job, memory[job.offset : job.offset + job.num_bytes], lanes[job.lane])
            _submit(threads, reads.begin, threads, options.threads)
    os._exit(0)


def _submit(threads: ThreadPoolExecutor, part: Callable[..., None], *arguments: Any) -> None:
    """Has a thread run it. Where no new one can be started, those that there are do, in their turn."""
    with suppress(RuntimeError):  # the part was queued before
        threads.submit(part, *arguments)


def _map(memory: mmap.mmap) -> None:
    """Maps all pages, behind everything else: a read would map each of them at its first use."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
    for _ in map_pages(ctypes.addressof(ctypes.c_char.from_buffer(memory)), len(memory), _MAPPED_BYTES):
        pass


def _parse(arguments: list[str]) -> Namespace:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--control", required=True, type=int, help="the socket of jobs")
    parser.add_argument("--lanes", required=True, type=int, nargs="+", help="the sockets of records")
    parser.add_argument("--memory", required=True, type=int, help="the file of the host cache's memory")
    parser.add_argument("--threads", required=True, type=int)
    parser.add_argument("--map", action="store_true", help="all pages of the memory are there already")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
