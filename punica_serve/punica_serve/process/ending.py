"""Ends child processes, each within a deadline.

A process in a call that can't be interrupted, as of a driver, outlives SIGKILL. Nobody waits for it then: it ends with
that call, and the system takes it over from its parent.
"""

import logging
import subprocess
from contextlib import suppress
from multiprocessing.process import BaseProcess

#: How long a killed process may take to be gone.
_KILL_TIMEOUT_S = 10.0

log = logging.getLogger(__name__)


def end_program(process: "subprocess.Popen[bytes]", grace_s: float = 0.0) -> None:
    """Waits at most ``grace_s`` for the end of a program, then kills it."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(grace_s)
        return
    process.kill()
    try:
        process.wait(_KILL_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        _warn(process.pid)


def end_process(process: BaseProcess, grace_s: float = 0.0) -> None:
    """The same for a started process of multiprocessing."""
    process.join(grace_s)
    if process.exitcode is not None:
        return
    process.kill()
    process.join(_KILL_TIMEOUT_S)
    if process.exitcode is None:
        _warn(process.pid)


def _warn(pid: int | None) -> None:
    log.warning("process %s was killed and is not gone after %g s", pid, _KILL_TIMEOUT_S)
