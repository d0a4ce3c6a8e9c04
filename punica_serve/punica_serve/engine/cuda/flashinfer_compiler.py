"""Compiles FlashInfer's kernels in processes that end with their owner: each leads a group, since it starts others."""

import fcntl
import logging
import os
import signal
import subprocess
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from punica_serve.config.engine_section import EngineConfig
from punica_serve.process.death_reason import failure_reason
from punica_serve.process.usable_cores import usable_cores

#: Seconds that a module may take to compile.
_COMPILE_TIMEOUT_S = 900.0
#: The share of the cores that compilers take beside serving, and the lowest priority there is.
_CORES_SHARE, _NICENESS = 0.25, 19
#: Longest wait for the end of what was killed.
_KILL_TIMEOUT_S = 5.0

logger = logging.getLogger(__name__)


class Compilation:
    """A started command. ``wait`` for it, or ``kill`` it from any thread."""

    def __init__(self, command: Sequence[str], *, is_beside_serving: bool = False) -> None:
        """``command`` may call ``end_with_owner``, since a worker that is killed closes nothing.

        ``is_beside_serving``: it takes a share of the cores, and each of them only while nobody else wants it.
        """
        environment = {**_background_jobs(), **os.environ} if is_beside_serving else None
        lifeline, self._lifeline = os.pipe()
        try:
            self._process = subprocess.Popen(
                command,
                stdin=lifeline,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
                env=environment,
            )
        except BaseException:
            os.close(self._lifeline)
            raise
        finally:
            os.close(lifeline)
        if is_beside_serving:
            _yield_to_all(self._process.pid)

    def wait(self, timeout_s: float = _COMPILE_TIMEOUT_S) -> None:
        """Returns once it has succeeded. Call it once. RuntimeError: it failed, or takes longer and was killed."""
        assert self._process.stderr is not None
        with self._process.stderr:
            try:
                _, errors = self._process.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired as error:
                raise RuntimeError(f"FlashInfer's kernels took more than {timeout_s:g} s to compile") from error
            finally:
                self.kill()
                os.close(self._lifeline)
        if self._process.returncode:
            reason = failure_reason(self._process.returncode, errors)
            raise RuntimeError(f"FlashInfer's kernels can't be compiled here: {reason}")

    def kill(self) -> None:
        """Ends it with all that it has started, if it still runs."""
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_KILL_TIMEOUT_S)


def cache_folder() -> Path:
    """Where FlashInfer keeps what it compiles."""
    return Path(os.environ.get("FLASHINFER_WORKSPACE_BASE") or Path.home()) / ".cache" / "flashinfer"


def not_compiled(config: EngineConfig) -> str:
    """Why missing kernels don't serve, and what becomes of them."""
    if config.compile_flashinfer:
        return "FlashInfer's kernels are not compiled yet; they are being compiled for the next start"
    return "FlashInfer's kernels are not compiled, and `engine.compile_flashinfer` is off"


class CompileJob(NamedTuple):
    """The command that compiles one module, and the file that says which process of the host does so."""

    command: Sequence[str]
    #: Beside the compiled kernels, so that all who share these share it.
    lock: Path


class FlashInferCompiler:
    """Runs jobs on a thread of its own, one after the other, up to the first that fails. ``close`` ends both.

    A job that another process runs, such as another rank or worker of the host, is left to it.
    """

    def __init__(self, jobs: Iterable[CompileJob], consequence: str) -> None:
        """``consequence``: of a failure, in the log."""
        self._jobs = tuple(jobs)
        self._consequence = consequence
        self._lock = threading.Lock()
        self._is_closed = False
        self._current: Compilation | None = None
        self._thread = threading.Thread(target=self._run, name="flashinfer-compiler", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Starts nothing more and kills what runs. The kernels are compiled again at the next start."""
        with self._lock:
            self._is_closed = True
            if self._current is not None:
                self._current.kill()
        self._thread.join(_KILL_TIMEOUT_S)

    def _run(self) -> None:
        try:
            for job in self._jobs:
                with _locked(job.lock) as is_ours:
                    if not is_ours:
                        logger.info("another process of this host compiles FlashInfer's kernels")
                        continue
                    if (compilation := self._start(job.command)) is None:
                        return
                    compilation.wait()
        except (RuntimeError, OSError) as error:
            if not self._is_closed:
                logger.warning("%s: %s", self._consequence, error)

    def _start(self, command: Sequence[str]) -> Compilation | None:
        """None after ``close``."""
        with self._lock:
            self._current = None if self._is_closed else Compilation(command, is_beside_serving=True)
            return self._current


def _background_jobs() -> dict[str, str]:
    """How many compilers FlashInfer starts at once, unless the environment says so: each takes gigabytes, and all of
    them take from the container's quota, at whatever priority.
    """
    return {"MAX_JOBS": f"{max(1, int(_CORES_SHARE * usable_cores()))}"}


def _yield_to_all(pid: int) -> None:
    """Lets a process that has just begun, and all that it starts, run only on cores that are idle otherwise.

    Compilers on all cores kept a step loop from its core for 4 ms at a time, and its GPU waited.
    """
    with suppress(OSError):  # it has ended, or the system forbids it
        os.setpriority(os.PRIO_PROCESS, pid, _NICENESS)
        os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))


@contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Whether this process got the lock, without waiting for it. It is freed in the end, or with the process.

    Raises OSError if the file can't be made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def end_with_owner() -> None:
    """Ends a started command's whole process group when the process that started it is gone."""
    threading.Thread(target=_watch_owner, name="lifeline", daemon=True).start()


def _watch_owner() -> None:
    os.read(0, 1)  # nothing is ever written: this returns when the owner has closed its end, or has died
    os.killpg(0, signal.SIGKILL)
