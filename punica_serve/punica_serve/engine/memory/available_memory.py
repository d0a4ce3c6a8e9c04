"""The host memory that a process may still take: what Linux could free for it, within its container's limit."""

import os
import re
from contextlib import suppress
from pathlib import Path

_ROOT = Path("/")
#: Memory of a container that can't be taken back from it; the rest of what it uses caches files.
_HELD = ("anon", "shmem")


def available_bytes(root: Path = _ROOT) -> int:
    """``root``: where /proc and /sys lie. Without them half of the host's memory counts as available."""
    with suppress(OSError):
        host = _field((root / "proc/meminfo").read_text(), r"MemAvailable:\s*(\d+) kB") << 10
        return min(host, _left_in_container(root / "sys/fs/cgroup", host))
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _left_in_container(cgroup: Path, host: int) -> int:
    """``host`` without a limit, or where the files (of cgroups, version 2) are not there."""
    with suppress(OSError):
        limit, stat = (cgroup / "memory.max").read_text().strip(), (cgroup / "memory.stat").read_text()
        if limit.isdecimal():
            return max(0, int(limit) - sum(_field(stat, rf"^{name} (\d+)$") for name in _HELD))
    return host


def _field(text: str, pattern: str) -> int:
    found = re.search(pattern, text, re.MULTILINE)
    return int(found[1]) if found else 0
