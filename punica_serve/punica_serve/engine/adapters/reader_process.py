"""Starts, watches and ends the process that reads packed files for a worker.

It is started with the first load, and again some time after it has died. While it is not ready, threads of the worker
read. It ends with its worker, in which it has nothing that would be lost.

A load that gets nothing for a moment asks the system whether the process was stopped, as by SIGSTOP. If so, it is
killed, and threads read what is left. A process whose disk is slow was not stopped, and is waited for.
"""

import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from struct import pack
from types import TracebackType

import msgspec
from torch import Tensor

from punica_serve.engine.adapters.chunk_process import FAILED, INVALID, OPENED, OPENED_DIRECT, RECORD, ReadJob
from punica_serve.engine.adapters.chunk_reads import ChunkRead, OnOpen
from punica_serve.engine.adapters.disk_watch import LOOK_S, DiskWatch, Patience
from punica_serve.engine.adapters.packed_chunk import PackedFileInvalid
from punica_serve.engine.adapters.packed_header import PackedName, chunk_ranges
from punica_serve.engine.memory.pinned_memory import HostMemory
from punica_serve.process.ctrl_c import ctrl_c_blocked

log = logging.getLogger(__name__)

_MODULE = "punica_serve.engine.adapters.chunk_process"
#: Loads that it has at a time: the most threads for loads that a worker has.
MAX_LOADS = 8
#: From one start of the process to the next, at least.
_RESTART_S = 60.0
#: A process that is not ready so long after its start is killed.
_START_S = 60.0
#: The records of more chunks than an adapter has.
_RECORDS_BYTES = 1 << 16
_POLL_S = 0.01
#: A process that was killed ends within that time, unless it waits for a disk.
_KILL_S = 1.0


class _Child:
    """A process that was started, and its sockets."""

    def __init__(self, memory: HostMemory, num_threads: int) -> None:
        """Raises OSError if it can't be started."""
        with ExitStack() as opened:
            ours, theirs = zip(*(_socket_pair(opened, socket.SOCK_STREAM) for _ in range(MAX_LOADS)), strict=True)
            self.control, control = _socket_pair(opened, socket.SOCK_SEQPACKET)
            self.control.setblocking(False)
            passed = [each.fileno() for each in (control, *theirs)]
            command = [sys.executable, "-P", "-m", _MODULE, "--control", str(passed[0])]
            command += ["--lanes", *map(str, passed[1:]), "--memory", str(memory.fd), "--threads", str(num_threads)]
            command += ["--map"] if memory.is_whole else []
            with ctrl_c_blocked():
                self.popen = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=(*passed, memory.fd))
            opened.pop_all()
            for each in (control, *theirs):
                each.close()
        #: Lanes that no load has, by their numbers.
        self.free_lanes = dict(enumerate(ours))
        #: It may live on for a while: a disk may hold it in the kernel.
        self.is_killed = False
        self._is_ready = self._is_dropped = False

    @property
    def takes_jobs(self) -> bool:
        """Whether it has said that it is ready, as far as ``look`` knows, has a lane free and is not known to end."""
        return self._is_ready and not self.is_killed and bool(self.free_lanes)

    @property
    def is_stopped(self) -> bool:
        """Whether a signal has stopped all of its threads. One that waits for a disk goes on until it has its bytes."""
        with suppress(ChildProcessError):  # it has ended
            return os.waitid(os.P_PID, self.popen.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
        return False

    def look(self) -> bool:
        """Whether it is ready, or has been."""
        if not self._is_ready:
            with suppress(OSError):  # nothing was said yet
                self._is_ready = bool(self.control.recv(1))
        return self._is_ready

    def kill(self) -> None:
        self.is_killed = True
        self.popen.kill()

    def give_back(self, number: int, lane: socket.socket) -> None:
        """A load has taken all records from its lane."""
        if self._is_dropped:
            lane.close()
        else:
            self.free_lanes[number] = lane

    def drop(self) -> None:
        """It has ended. Loads still find the ends of their lanes."""
        self._is_dropped = True
        self.control.close()
        while self.free_lanes:
            self.free_lanes.popitem()[1].close()


class ReaderProcess:
    """The process of one worker. Any thread may call it."""

    def __init__(self, memory: HostMemory, num_threads: int, watch: DiskWatch) -> None:
        """``memory``: the host cache's, which is open at least until ``close``."""
        self._memory = memory
        self._num_threads = num_threads
        self._watch = watch
        #: Guards the process and its lanes.
        self._lock = threading.Lock()
        self._child: _Child | None = None
        self._is_closed = False
        self._started_s = float("-inf")

    def start(self, timeout_s: float) -> int | None:
        """Starts the process and waits until it takes loads. Its number; None if it does not in time."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            with self._lock:
                if self._look() and self._child is not None:
                    return self._child.popen.pid
            if time.monotonic() >= deadline_s:
                return None
            time.sleep(_POLL_S)

    def begin(self, path: Path, name: PackedName, memory: Tensor) -> "ProcessReads | None":
        """Has an adapter read into ``memory``, uint8; None if the process can't now, or not into that.

        Starts the process if it is time.
        """
        with self._lock:
            return self._send(path, name, memory) if self._look() else None

    def begin_at_once(self, path: Path, name: PackedName, memory: Tensor) -> "ProcessReads | None":
        """The same by a process that is ready. Never waits, nor starts anything: None also while others are at it."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            return self._send(path, name, memory)
        finally:
            self._lock.release()

    def close(self) -> None:
        """Ends the process. Loads that it has not finished have to go on elsewhere."""
        with self._lock:
            self._is_closed = True
            self._end()

    def _send(self, path: Path, name: PackedName, memory: Tensor) -> "ProcessReads | None":
        offset, child, places = self._memory.file_offset(memory), self._child, chunk_ranges(memory.nbytes)
        if offset is None or child is None or not child.takes_jobs or not places:
            return None
        number, lane = child.free_lanes.popitem()
        job = msgspec.msgpack.encode(ReadJob(number, os.fsencode(path), name, offset, memory.nbytes))
        try:
            child.control.send(job)
        except OSError:  # it has just died, or takes no more
            child.free_lanes[number] = lane
            return None
        end_silent, end_load = partial(self._end_silent, child), partial(self._end_load, child, number)
        return ProcessReads(lane, places, self._watch, end_silent, end_load)

    def _end_load(self, child: _Child, number: int, lane: socket.socket) -> None:
        with self._lock:
            child.give_back(number, lane)

    def _end_silent(self, silent: _Child, is_hanging: bool) -> bool:
        """Ends a process from which nothing has come if it was stopped, or hangs. Returns whether it is ended."""
        with self._lock:
            if silent is self._child and not silent.is_killed:  # no other load has ended it
                if not (is_hanging or silent.is_stopped):
                    return False
                self._kill("does not answer" if is_hanging else "was stopped by a signal")
        return True

    def _kill(self, reason: str) -> None:
        log.warning("the process that reads packed adapters %s and is killed; threads read meanwhile", reason)
        self._end()

    def _end(self) -> None:
        if self._child is not None:
            self._child.kill()
            with suppress(subprocess.TimeoutExpired):  # it waits for a disk
                self._child.popen.wait(_KILL_S)
                self._drop(self._child)

    def _look(self) -> bool:
        """Whether there is a process that takes jobs. One is started if it is time."""
        if self._child is not None and (status := self._child.popen.poll()) is not None:
            log.warning("the process that reads packed adapters ended with status %d; threads read meanwhile", status)
            self._drop(self._child)
        age_s = time.monotonic() - self._started_s
        if self._child is None and not self._is_closed and age_s >= _RESTART_S:
            self._start()
        elif self._child is not None and not (self._child.look() or self._child.is_killed) and age_s >= _START_S:
            self._kill("did not start in time")
        return self._child is not None and self._child.takes_jobs

    def _start(self) -> None:
        self._started_s = time.monotonic()
        try:
            self._child = _Child(self._memory, self._num_threads)
        except OSError as error:
            log.warning("no process can be started to read packed adapters, so threads do: %s", error)

    def _drop(self, child: _Child) -> None:
        child.drop()
        self._child = None


class ProcessReads:
    """The reads of one adapter by the process. Within ``with`` it writes to the memory, and when that ends no more."""

    def __init__(
        self,
        lane: socket.socket,
        places: Sequence[range],
        watch: DiskWatch,
        end_silent: Callable[[bool], bool],
        end: Callable[[socket.socket], None],
    ) -> None:
        """``places``: the chunks' in the memory.

        ``end_silent`` ends the process if it can't go on, or in any case, and tells whether it is ended. ``end`` gets
        the lane once there is nothing more to come.
        """
        self._lane = lane
        self._left = dict(enumerate(places))
        self._watch = watch
        self._end_silent = end_silent
        self._end = end
        self._has_ended = False
        self._error: Exception | None = None

    def __enter__(self) -> "ProcessReads":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for _ in self._batches(lambda *_: None):
            pass
        self._end(self._lane)

    @property
    def left(self) -> Collection[range]:
        """Places of chunks that were not read, after ``batches``: the process has died."""
        return self._left.values()

    def batches(self, on_open: OnOpen) -> Iterator[list[ChunkRead]]:
        """The chunks, in batches as they come, the last of them at once: without waiting for more.

        Raises PackedFileInvalid or OSError if the file or a chunk is damaged, or can't be read.
        """
        yield from self._batches(on_open)
        if self._error is not None:
            raise self._error

    def _batches(self, on_open: OnOpen) -> Iterator[list[ChunkRead]]:
        """The chunks that come until all have, or a failure, or the system has ended all threads of the process."""
        patience, is_killed = Patience(self._watch), False
        with ExitStack() as hanging:
            while self._left and not self._has_ended:
                records = self._receive(_KILL_S if is_killed else LOOK_S)
                if records is None and is_killed:
                    hanging.enter_context(self._watch.hanging())
                    records = self._receive(None)
                elif records is None:
                    is_killed = self._end_silent(patience.is_over())
                if records and (reads := self._take(records, on_open)):
                    yield reads

    def _receive(self, timeout_s: float | None) -> bytes | None:
        """Records, none at the end; None after the timeout. One call of the system, which gives the GIL up once."""
        timeout_us = 0 if timeout_s is None else int(1e6 * timeout_s) + 1  # 0: none
        self._lane.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, pack("ll", *divmod(timeout_us, 1_000_000)))
        try:
            records = self._lane.recv(_RECORDS_BYTES)
        except BlockingIOError:
            return None
        self._has_ended = not records
        return records

    def _take(self, records: bytes, on_open: OnOpen) -> list[ChunkRead]:
        reads = []
        for number, error, begun_s, read_s, checked_s in RECORD.iter_unpack(records):
            if number == FAILED:
                self._error, self._has_ended = _error_of(error), True
            elif number in (OPENED, OPENED_DIRECT):
                on_open(number == OPENED_DIRECT, begun_s)
            else:
                self._watch.newest_chunk_s = checked_s
                reads.append(ChunkRead(self._left.pop(number), begun_s, read_s, checked_s))
        return reads


def _socket_pair(opened: ExitStack, kind: socket.SocketKind) -> tuple[socket.socket, socket.socket]:
    pair = socket.socketpair(socket.AF_UNIX, kind)
    for each in pair:
        opened.enter_context(each)
    return pair


def _error_of(number: int) -> Exception:
    if number == INVALID:
        return PackedFileInvalid("it is damaged or cut short")
    return OSError(number, os.strerror(number))
