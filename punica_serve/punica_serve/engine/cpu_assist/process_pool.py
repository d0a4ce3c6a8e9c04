"""Starts, watches and replaces the CPU processes of a worker.

One thread owns them: the system ends them with the thread that started them. A process that died is started again,
later each time; one that does not leave a job is killed first, so that it can't write into a later step's rows.
The steps and the other processes need nobody to tell them of a death: the system's kernel changes the process's word.
"""

import logging
import os
import subprocess
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from punica_serve.engine.cpu_assist.exchange_memory import ExchangeMemory, JobWords
from punica_serve.engine.memory.pinned_memory import HostMemory
from punica_serve.errors.invariants import require
from punica_serve.process.ctrl_c import ctrl_c_blocked
from punica_serve.process.module_command import module_command

log = logging.getLogger(__name__)

_MODULE = "punica_serve.engine.cpu_assist.assist_process"
#: Between two looks at the processes.
_TICK_S = 0.05
#: The first restart of a process, and the longest pause before one.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 60.0
#: A process that has lived for so long is started again at once.
_LONG_LIFE_S = 60.0
#: A process leaves a job soon after the step's end, or it is stopped.
_LEAVE_GRACE_S = 0.25
#: The same where no step has waited in vain, so that it may as well wait for a core. No prefill gets CPU assistance
#: until then.
_STAY_GRACE_S = 10.0
#: Longest wait for the end of all processes. One that the kernel does not let die must not hold the worker.
_CLOSE_TIMEOUT_S = 5.0


@dataclass(slots=True, eq=False)
class _Child:
    """One process, and those that had its number before."""

    number: int
    core: int
    popen: subprocess.Popen[bytes] | None = None
    started_s: float = 0.0
    pause_s: float = 0.0
    starts_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Suspects:
    """The processes that have not left this job, though its step has ended."""

    job: JobWords
    since_s: float = field(default_factory=time.monotonic)


class ProcessPool:
    """The processes of one worker. ``close`` ends them."""

    def __init__(self, memory: ExchangeMemory, shared: HostMemory, host: HostMemory, cores: Sequence[int]) -> None:
        """One process on each of ``cores``. ``shared``: the memory of ``memory``."""
        self._memory = memory
        shape = msgspec.json.encode(memory.shape).decode()
        self._arguments = ["--shape", shape, "--exchange", _place(shared), "--host", _place(host)]
        self._arguments += ["--map-host"] if host.is_whole else []
        self._fds = (shared.fd, host.fd)
        self._children = [_Child(number, core) for number, core in enumerate(cores)]
        #: Added by the step loop, taken by the thread.
        self._suspects: deque[_Suspects] = deque()
        #: Written by the step loop, and read by the thread: once, where several of its words count.
        self._last_job = JobWords(0, 0, (), ())
        #: Those that have not left the last job, seen by the thread; None if all have.
        self._stayed: _Suspects | None = None
        #: Held while a pipe is written to or closed: its number would be that of another file soon.
        self._pipes = threading.Lock()
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="cpu-assist", daemon=True)
        self._thread.start()

    @property
    def ready(self) -> tuple[int, ...]:
        """The numbers of the processes that can compute."""
        return tuple(child.number for child in self._children if self._is_ready(child))

    @property
    def is_free(self) -> bool:
        """Whether the last job was left by all of its processes: before that there must not be another.

        One that has died leaves it when the step has ended.
        """
        return not self._staying(self._last_job)

    def pid(self, number: int) -> int | None:
        """The process with that number; None while there is none."""
        popen = self._children[number].popen
        return popen.pid if popen is not None else None

    def wait_until_ready(self, timeout_s: float) -> bool:
        """Waits for all processes. False if some are not ready in time."""
        deadline_s = time.monotonic() + timeout_s
        while len(self.ready) < len(self._children):
            if time.monotonic() > deadline_s or self._is_closing.wait(_TICK_S / 5):
                return False
        return True

    def wake(self, job: JobWords) -> None:
        """Tells its processes of the job in the shared memory."""
        require(self.is_free, "a job begins before the last one was left")
        self._last_job = job
        with self._pipes:
            for number in job.processes:
                _wake(self._children[number])

    def suspect(self, job: JobWords) -> None:
        """Replaces the processes that don't leave the job soon. Its step has ended."""
        self._suspects.append(_Suspects(job))

    def close(self) -> None:
        """Kills all processes, which hold nothing that would be lost."""
        self._is_closing.set()
        self._thread.join(_CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            log.warning("some CPU processes of `engine.cold_start` did not end within %g s", _CLOSE_TIMEOUT_S)

    def _is_ready(self, child: _Child) -> bool:
        return child.popen is not None and self._memory.pids[child.number] == child.popen.pid

    def _watch(self) -> None:
        try:
            while not self._is_closing.is_set():
                for child in self._children:
                    self._tend(child)
                self._look_at_last_job()
                self._look_at_suspects()
                self._is_closing.wait(_TICK_S)
        finally:
            for child in self._children:
                if child.popen is not None:
                    child.popen.kill()  # all at once: the kernel takes its time to unmap their memory
            for child in self._children:
                self._kill(child)

    def _look_at_last_job(self) -> None:
        """Suspects processes that were stopped while no step needed them: no other job could ever begin."""
        job = self._last_job
        if self._memory.ended_key < job.key or not self._staying(job):
            self._stayed = None
            return
        if self._stayed is None or self._stayed.job is not job:
            self._stayed = _Suspects(job)
        if time.monotonic() - self._stayed.since_s >= _STAY_GRACE_S:
            self._stayed = None
            self.suspect(job)

    def _look_at_suspects(self) -> None:
        """Each that is there now once; the step loop may add some meanwhile."""
        for _ in range(len(self._suspects)):
            suspects = self._suspects.popleft()
            if self._is_open(suspects):
                self._suspects.append(suspects)

    def _staying(self, job: JobWords) -> list[int]:
        """The processes that have not left the job."""
        return [number for number in job.processes if self._memory.left[number] < job.key]

    def _tend(self, child: _Child) -> None:
        """Starts the process if it is due, and notices its end."""
        if child.popen is None:
            key = self._last_job.key
            if self._memory.ended_key >= key:
                self._memory.left[child.number] = key
                if time.monotonic() >= child.starts_s:
                    self._start(child)
        elif (status := child.popen.poll()) is not None:
            self._end(child, f"ended with status {status}")

    def _start(self, child: _Child) -> None:
        command = module_command(_MODULE, "--number", str(child.number), "--core", str(child.core))
        command += self._arguments
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        child.started_s = time.monotonic()
        try:
            with ctrl_c_blocked():
                child.popen = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=self._fds, env=environment)
        except OSError as error:
            self._end(child, f"can't be started: {error}")

    def _end(self, child: _Child, reason: str) -> None:
        """Records the end of a process, and when the next one starts."""
        self._kill(child)
        log.warning("CPU process %d of `engine.cold_start` %s; another one replaces it", child.number, reason)
        now_s = time.monotonic()
        is_old = now_s - child.started_s > _LONG_LIFE_S
        child.pause_s = 0.0 if is_old else min(max(_FIRST_PAUSE_S, 2 * child.pause_s), _LONGEST_PAUSE_S)
        child.starts_s = now_s + child.pause_s
        self._memory.pids[child.number] = 0

    def _is_open(self, suspects: _Suspects) -> bool:
        """Kills those that have not left the job after a while. False once all have left it."""
        staying = self._staying(suspects.job)
        if time.monotonic() - suspects.since_s < _LEAVE_GRACE_S:
            return bool(staying)
        for number in staying:
            self._end(self._children[number], "did not answer and was killed")
        return False

    def _kill(self, child: _Child) -> None:
        """Ends a process, stopped or not, and waits until it is gone."""
        popen = child.popen
        if popen is None:
            return
        popen.kill()
        popen.wait()
        with self._pipes:
            child.popen = None
            if popen.stdin is not None:
                popen.stdin.close()


def _place(memory: HostMemory) -> str:
    return f"{memory.fd}:{memory.offset}:{len(memory.bytes)}"


def _wake(child: _Child) -> None:
    """Has no effect on a process that has died: the step's wait for it ends by its deadline."""
    if child.popen is not None and child.popen.stdin is not None:
        with suppress(OSError):
            os.write(child.popen.stdin.fileno(), b"j")
