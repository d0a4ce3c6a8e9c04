"""Starts, watches and ends the process that reads packed files for a worker.

It is started with the first load, and again some time after it has died. While it is not ready, threads of the worker
read. It ends with its worker, in which it has nothing that would be lost.
"""

import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from struct import pack
from types import TracebackType

import msgspec
from torch import Tensor

from punica_serve.engine.adapters.chunk_process import INVALID, RECORD, ChunkPlace, ReadJob
from punica_serve.engine.adapters.chunk_reads import ChunkRead
from punica_serve.engine.adapters.disk_watch import DiskWatch
from punica_serve.engine.adapters.packed_chunk import Chunk, PackedFileInvalid
from punica_serve.engine.adapters.range_reader import RangeReader
from punica_serve.engine.memory.pinned_memory import HostMemory

log = logging.getLogger(__name__)

_MODULE = "punica_serve.engine.adapters.chunk_process"
#: From one start of the process to the next, at least.
_RESTART_S = 60.0
#: The records of more chunks than an adapter has.
_RECORDS_BYTES = 1 << 16
#: A process that was killed ends within that time, unless it waits for a disk.
_KILL_S = 1.0


class ReaderProcess:
    """The process of one worker. Any thread may call it."""

    def __init__(self, memory: HostMemory, num_threads: int, watch: DiskWatch) -> None:
        """``memory``: the host cache's, which is open at least until ``close``."""
        self._memory = memory
        self._num_threads = num_threads
        self._watch = watch
        self._lock = threading.Lock()
        self._popen: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._is_ready = self._is_closed = False
        self._started_s = float("-inf")

    def begin(self, file: RangeReader, chunks: Sequence[Chunk], memory: Tensor) -> "ProcessReads | None":
        """The reads of an adapter into ``memory``, uint8; None if the process can't read now, or not into that."""
        offset = self._memory.file_offset(memory)
        if offset is None:
            return None
        places = tuple(ChunkPlace(chunk.start, len(chunk.memory), chunk.checksum) for chunk in chunks)
        job = msgspec.msgpack.encode(ReadJob(offset, places))
        with self._lock:
            control = self._ready_control()
            if control is None:
                return None
            answers = _send_job(control, job, file.descriptors)
            if answers is None:
                return None
            return ProcessReads(answers, chunks, self._watch, partial(self._kill, self._popen))

    def close(self) -> None:
        """Ends the process. Loads that it has not finished have to go on elsewhere."""
        with self._lock:
            self._is_closed = True
            self._end()

    def _kill(self, silent: "subprocess.Popen[bytes] | None") -> None:
        """Ends a process that does not answer."""
        with self._lock:
            if silent is self._popen:  # no other load has
                log.warning("the process that reads packed adapters does not answer and is killed")
                self._end()

    def _end(self) -> None:
        if self._popen is not None:
            self._is_ready = False
            self._popen.kill()
            with suppress(subprocess.TimeoutExpired):  # it waits for a disk
                self._popen.wait(_KILL_S)
                self._drop()

    def _ready_control(self) -> socket.socket | None:
        """Where jobs go. None while there is no process that takes them; one is started if it is time."""
        if self._popen is not None and (status := self._popen.poll()) is not None:
            log.warning("the process that reads packed adapters ended with status %d; threads read meanwhile", status)
            self._drop()
        if self._popen is None and not self._is_closed and time.monotonic() >= self._started_s + _RESTART_S:
            self._start()
        if self._control is not None and not self._is_ready:
            with suppress(OSError):  # nothing was said yet
                self._is_ready = bool(self._control.recv(1))
        return self._control if self._is_ready else None

    def _start(self) -> None:
        self._started_s = time.monotonic()
        with ExitStack() as opened:
            try:
                control, theirs = map(opened.enter_context, socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                control.setblocking(False)
                self._popen = self._open(theirs.fileno())
            except OSError as error:
                log.warning("no process can be started to read packed adapters, so threads do: %s", error)
                return
            opened.pop_all()
            theirs.close()
            self._control = control

    def _open(self, control: int) -> "subprocess.Popen[bytes]":
        fds = (control, self._memory.fd)
        command = [sys.executable, "-m", _MODULE, "--control", str(fds[0]), "--memory", str(fds[1])]
        command += ["--threads", str(self._num_threads), *(["--populate"] if self._memory.is_whole else [])]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=fds)

    def _drop(self) -> None:
        if self._control is not None:
            self._control.close()
        self._popen = self._control = None
        self._is_ready = False


class ProcessReads:
    """The reads of one adapter by the process. Within ``with`` it writes to the memory, and when that ends no more."""

    def __init__(
        self, answers: socket.socket, chunks: Sequence[Chunk], watch: DiskWatch, kill: Callable[[], None]
    ) -> None:
        """Takes over the socket ``answers``. ``kill``: ends the process, which does not answer."""
        self._answers = answers
        self._left = dict(enumerate(chunks))
        self._watch = watch
        self._kill = kill
        self._has_ended = False
        self._error: Exception | None = None

    def __enter__(self) -> "ProcessReads":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for _ in self._batches():
            pass
        self._answers.close()

    @property
    def left(self) -> list[Chunk]:
        """Chunks that were not read, after ``batches``: the process has died."""
        return list(self._left.values())

    def batches(self) -> Iterator[list[ChunkRead]]:
        """The chunks, in batches as they come. Raises PackedFileInvalid or OSError if one is damaged or not read."""
        yield from self._batches()
        if self._error is not None:
            raise self._error

    def _batches(self) -> Iterator[list[ChunkRead]]:
        """The chunks that come until the process, or the system once all its threads have ended, closes the socket."""
        since_s, is_killed = time.perf_counter(), False
        with ExitStack() as hanging:
            while not self._has_ended:
                patience_s = _KILL_S if is_killed else self._watch.patience_s(since_s)
                if patience_s <= 0:
                    self._kill()
                    is_killed = True
                    continue
                records = self._receive(patience_s)
                if records is None and is_killed:
                    hanging.enter_context(self._watch.hanging())
                    records = self._receive(None)
                if records:
                    yield self._take(records)

    def _receive(self, timeout_s: float | None) -> bytes | None:
        """Records, none at the end; None after the timeout. One call of the system, which gives the GIL up once."""
        timeout_us = 0 if timeout_s is None else int(1e6 * timeout_s) + 1  # 0: none
        self._answers.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, pack("ll", *divmod(timeout_us, 1_000_000)))
        try:
            records = self._answers.recv(_RECORDS_BYTES)
        except BlockingIOError:
            return None
        self._has_ended = not records
        return records

    def _take(self, records: bytes) -> list[ChunkRead]:
        reads = []
        for number, error, begun_s, read_s, checked_s in RECORD.iter_unpack(records):
            if error:
                self._error = _error_of(error)
            else:
                self._watch.newest_chunk_s = checked_s
                reads.append(ChunkRead(self._left.pop(number), begun_s, read_s, checked_s))
        return reads


def _send_job(control: socket.socket, job: bytes, descriptors: Sequence[int]) -> socket.socket | None:
    """Where the process will answer; None if it has just died, or takes no more."""
    with ExitStack() as opened, suppress(OSError):
        ours, theirs = socket.socketpair()
        opened.enter_context(theirs)
        opened.callback(ours.close)
        socket.send_fds(control, [job], [theirs.fileno(), *descriptors])
        opened.pop_all()
        theirs.close()
        return ours
    return None


def _error_of(number: int) -> Exception:
    if number == INVALID:
        return PackedFileInvalid("it is damaged or cut short")
    return OSError(number, os.strerror(number))
