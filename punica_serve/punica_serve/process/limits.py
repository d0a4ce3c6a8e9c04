"""Kernel limits on the memory and CPU time of a process that works on untrusted input."""

import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

#: Assumed if the kernel does not say how much address space this process has.
_UNKNOWN_BYTES = 1 << 30

#: How much nicer than the processes that serve requests.
_NICENESS = 10

#: Where the code of a process is.
_ENVIRONMENT = ("PYTHONPATH", "LD_LIBRARY_PATH")


def low_priority_command(module: str) -> tuple[str, ...]:
    """The command that runs ``main()`` of a module while processes that serve requests get the CPU first.

    The priority is lowered before anything is imported, since imports take longer than most jobs.
    """
    return sys.executable, "-P", "-c", f"import os; os.nice({_NICENESS}); from {module} import main; main()"


def bare_environment() -> dict[str, str]:
    """All that such a process gets of this one's environment: what it needs to start, and no secrets."""
    return {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}


def limit_memory(more_bytes: int) -> None:
    """Limits this process to ``more_bytes`` of address space beyond what it has now.

    An allocation beyond that fails: MemoryError in Python, an abort in most libraries.
    """
    limit_address_space(address_space_bytes() + more_bytes)


def limit_address_space(max_bytes: int | None) -> None:
    """Limits this process's address space, and disables core dumps. None lifts the limit to the parent's.

    It is the soft limit, which this process may raise again: it guards against bad input, not against bad code.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if max_bytes is None or (hard != resource.RLIM_INFINITY and max_bytes > hard):
        max_bytes = hard
    resource.setrlimit(resource.RLIMIT_AS, (max_bytes, hard))


def address_space_bytes() -> int:
    """The size of this process's address space, in bytes, used or not."""
    try:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[0]) * resource.getpagesize()
    except OSError:  # no Linux
        return _UNKNOWN_BYTES


@contextmanager
def limited_cpu(max_cpu_s: float) -> Iterator[None]:
    """Kills this process if the body takes more CPU time than that, all threads together."""
    signal.setitimer(signal.ITIMER_PROF, max_cpu_s)  # SIGPROF has no handler, so it ends the process
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
