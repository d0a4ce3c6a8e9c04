"""Processes as the kernel lists them: what a test's processes have started, and whether it still runs. Linux only."""

import contextlib
from pathlib import Path


def descendants(*pids: int) -> list[int]:
    """Process ids below these, parents before children; zombies and what they had started are left out."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                children.setdefault(int(parent), []).append(int(stat.parent.name))
    found = list(pids)
    for pid in found:  # grows while it is walked
        found += children.get(pid, [])
    return found[len(pids) :]


def command_line(pid: int) -> str:
    """Arguments with a space after each; empty for a process that has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    return ""


def with_environment(variable: str, value: str) -> list[int]:
    """Process ids that were started with this in their environment, wherever they are in the tree by now."""
    wanted = f"{variable}={value}".encode()
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if wanted in environ.read_bytes().split(b"\0"):
                found.append(int(environ.parent.name))
    return found


def is_alive(pid: int) -> bool:
    """Whether it still runs: a zombie, which nobody has waited for, does not."""
    return bool(command_line(pid))


def alive(pids: list[int]) -> list[int]:
    """Those that still run."""
    return list(filter(is_alive, pids))
