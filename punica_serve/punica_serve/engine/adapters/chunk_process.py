"""A process that reads and checks chunks of packed files for a worker, straight into the memory of its host cache.

Its threads share no GIL with the worker's step loop. A job is one message with the open file. Each chunk that is read
is a record on a socket of the job, whose end says that this process writes to the job's memory no more.
"""

import ctypes
import mmap
import os
import signal
import socket
import sys
import threading
import time
from argparse import ArgumentParser, Namespace
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from struct import Struct

import msgspec

from punica_serve.engine.adapters.packed_chunk import Chunk, PackedFileInvalid, check_chunk, read_chunk
from punica_serve.engine.adapters.range_reader import RangeReader

#: A job's message has at most so many bytes, and comes with its socket and one or two descriptors of the file.
MAX_MESSAGE_BYTES, _MAX_DESCRIPTORS = 1 << 16, 3
#: A chunk's number, its error, and when it was begun, read and checked, by ``time.perf_counter`` in seconds.
RECORD = Struct("<iiddd")
#: Errors beside those of the system: the file is cut short or damaged.
INVALID = -1
_PR_SET_PDEATHSIG = 1
_NICE = 19
_MADV_POPULATE_WRITE, _POPULATED_BYTES = 23, 64 << 20


class ChunkPlace(msgspec.Struct, frozen=True, array_like=True):
    """A chunk as the process reads it."""

    #: In the adapter.
    start: int
    num_bytes: int
    checksum: bytes


class ReadJob(msgspec.Struct, frozen=True, array_like=True):
    """The chunks of one adapter."""

    #: Where the adapter starts in the file of the host cache's memory.
    offset: int
    chunks: tuple[ChunkPlace, ...]


@dataclass(slots=True, eq=False)
class _Reads:
    """The reads of one job, which several threads share. The last of them closes all."""

    file: RangeReader
    answers: socket.socket
    waiting: deque[tuple[int, Chunk]]
    num_running: int
    lock: threading.Lock

    def run(self) -> None:
        """Reads chunks until none is left. No thread begins another after an error."""
        try:
            with suppress(IndexError):
                while True:
                    self._read(*self.waiting.popleft())
        finally:
            with self.lock:
                self.num_running -= 1
                is_last = not self.num_running
            if is_last:
                self.file.close()
                self.answers.close()

    def _read(self, number: int, chunk: Chunk) -> None:
        begun_s = time.perf_counter()
        try:
            read_chunk(self.file, chunk)
            read_s = time.perf_counter()
            check_chunk(chunk)
        except (PackedFileInvalid, OSError) as error:
            self.waiting.clear()
            errno = INVALID if isinstance(error, PackedFileInvalid) else error.errno or INVALID
            self._answer(RECORD.pack(number, errno, begun_s, begun_s, begun_s))
        else:
            self._answer(RECORD.pack(number, 0, begun_s, read_s, time.perf_counter()))

    def _answer(self, record: bytes) -> None:
        """Never waits: a socket has room for the records of all chunks."""
        try:
            self.answers.send(record)
        except OSError:  # the worker is gone
            self.waiting.clear()


def main(arguments: list[str]) -> None:
    options = _parse(arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the worker decides
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    memory = mmap.mmap(options.memory, 0)
    control = socket.socket(fileno=options.control)
    if options.populate:
        threading.Thread(target=_populate, args=(memory,), daemon=True).start()
    with ThreadPoolExecutor(options.threads) as threads:
        control.send(b"r")
        while job := _receive(control, memoryview(memory), options.threads):
            for _ in range(job.num_running):
                threads.submit(job.run)
        os._exit(0)  # the worker is gone


def _receive(control: socket.socket, memory: memoryview, num_threads: int) -> _Reads | None:
    """The next job; None if the worker has closed the socket."""
    message, descriptors, _, _ = socket.recv_fds(control, MAX_MESSAGE_BYTES, _MAX_DESCRIPTORS)
    if not message:
        return None
    job = msgspec.msgpack.decode(message, type=ReadJob)
    answers, *file = descriptors
    chunks = [_chunk(place, memory[job.offset :]) for place in job.chunks]
    return _Reads(
        RangeReader(*file),
        socket.socket(fileno=answers),
        deque(enumerate(chunks)),
        min(num_threads, len(chunks)),
        threading.Lock(),
    )


def _chunk(place: ChunkPlace, memory: memoryview) -> Chunk:
    return Chunk(place.start, memory[place.start : place.start + place.num_bytes], place.checksum)


def _populate(memory: mmap.mmap) -> None:
    """Maps all pages, behind everything else: a read would map each of them at its first use.

    Linux can since 5.14.
    """
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
    advise, address = ctypes.CDLL(None).madvise, ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for start in range(0, len(memory), _POPULATED_BYTES):
        num_bytes = min(_POPULATED_BYTES, len(memory) - start)
        if advise(ctypes.c_void_p(address + start), ctypes.c_size_t(num_bytes), _MADV_POPULATE_WRITE):
            return


def _parse(arguments: list[str]) -> Namespace:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--control", required=True, type=int, help="the socket of jobs")
    parser.add_argument("--memory", required=True, type=int, help="the file of the host cache's memory")
    parser.add_argument("--threads", required=True, type=int)
    parser.add_argument("--populate", action="store_true", help="all pages of the memory are there already")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
