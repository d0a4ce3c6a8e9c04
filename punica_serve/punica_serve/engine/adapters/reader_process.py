"""Starts, watches and ends the process that reads packed files for a worker.

It is started with the engine of a GPU, whose host memory it maps, else with the first load, and again some time after
it has died. While it is not ready, threads of the worker read. It ends with its worker, in which it has nothing that
would be lost.

A load that gets nothing for a moment asks the system whether the process was stopped, as by SIGSTOP, and after a while
whether all of its threads sleep, as in a deadlock. If so, it is killed, and threads read what is left. A process whose
disk is slow has a thread that waits for it, and is waited for.
"""

import logging
import os
import socket
import subprocess
import threading
import time
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import msgspec
from torch import Tensor

from punica_serve.engine.adapters.chunk_process import ReadJob
from punica_serve.engine.adapters.chunk_reads import ChunkReads
from punica_serve.engine.adapters.disk_watch import DiskWatch, Patience
from punica_serve.engine.adapters.packed_header import PackedName, chunk_ranges
from punica_serve.engine.memory.pinned_memory import HostMemory
from punica_serve.process.ctrl_c import ctrl_c_blocked
from punica_serve.process.module_command import module_command

log = logging.getLogger(__name__)

_MODULE = "punica_serve.engine.adapters.chunk_process"
#: Loads that it has at a time: the most threads for loads that a worker has.
MAX_LOADS = 8
#: From one start of the process to the next, at least.
_RESTART_S = 60.0
#: A process that is not ready so long after its start is killed.
_START_S = 60.0
_POLL_S = 0.01
#: States of threads that run or want a core, and of those that wait for a disk.
_AT_WORK = frozenset("RD")
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
            command = module_command(_MODULE, "--control", str(passed[0]))
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

    @property
    def is_asleep(self) -> bool:
        """Whether each of its threads waits for something else than a disk or a core. False where nobody can tell."""
        try:
            states = [_state_of(thread) for thread in Path(f"/proc/{self.popen.pid}/task").iterdir()]
        except (OSError, IndexError):  # a thread or the process has just ended, or the system has no such files
            return False
        return not _AT_WORK.intersection(states)

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

    def begin(self, path: Path, name: PackedName, memory: Tensor) -> ChunkReads | None:
        """Has an adapter read into ``memory``, uint8; None if the process can't now, or not into that.

        Starts the process if it is time.
        """
        with self._lock:
            return self._send(path, name, memory) if self._look() else None

    def begin_at_once(self, path: Path, name: PackedName, memory: Tensor) -> ChunkReads | None:
        """The same by a process that is ready. Never waits, nor starts anything: None also while others are at it."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            if self._child is not None:
                self._child.look()
            return self._send(path, name, memory)
        finally:
            self._lock.release()

    def close(self) -> None:
        """Ends the process. Loads that it has not finished have to go on elsewhere."""
        with self._lock:
            self._is_closed = True
            self._end()

    def _send(self, path: Path, name: PackedName, memory: Tensor) -> ChunkReads | None:
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
        return ChunkReads(lane, dict(enumerate(places)), self._watch, end_silent, end_load)

    def _end_load(self, child: _Child, number: int, lane: socket.socket) -> None:
        with self._lock:
            child.give_back(number, lane)

    def _end_silent(self, silent: _Child, patience: Patience) -> bool:
        """Ends a process from which nothing has come if it was stopped, or hangs. Returns whether it is ended."""
        with self._lock:
            if silent is self._child and not silent.is_killed:  # no other load has ended it
                if (reason := _why_silent(silent, patience)) is None:
                    return False
                self._kill(reason)
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


def _why_silent(child: _Child, patience: Patience) -> str | None:
    """Why nothing more can be expected of a process; None if it may only be slow."""
    if child.is_stopped:
        return "was stopped by a signal"
    if patience.is_over_for_idle and child.is_asleep:
        return "hangs, and waits for no disk,"
    return "does not answer" if patience.is_over else None


def _state_of(thread: Path) -> str:
    """The letter of a thread's state. It stands behind the name, which may have any characters. Raises OSError."""
    return (thread / "stat").read_text().rpartition(")")[2].split()[0]


def _socket_pair(opened: ExitStack, kind: socket.SocketKind) -> tuple[socket.socket, socket.socket]:
    pair = socket.socketpair(socket.AF_UNIX, kind)
    for each in pair:
        opened.enter_context(each)
    return pair
