"""The host memory that a process may still take: what Linux could free for it, within its container's limit."""

import os
import re
from contextlib import suppress
from pathlib import Path

_ROOT = Path("/")
#: By version of cgroups: the files of a container's limit and of its uses, and the uses that can't be taken back from
#: it; the rest caches files.
_CGROUPS = (
    ("memory.max", "memory.stat", ("anon", "shmem")),
    ("memory/memory.limit_in_bytes", "memory/memory.stat", ("total_rss", "total_shmem")),
)


def available_bytes(root: Path = _ROOT) -> int:
    """``root``: where /proc and /sys lie. Where they don't tell, half of the host's memory counts as available."""
    return min([_available_on_host(root), *_left_in_container(root / "sys/fs/cgroup")])


def _available_on_host(root: Path) -> int:
    with suppress(OSError):
        if (num_kib := _field((root / "proc/meminfo").read_text(), r"^MemAvailable:\s*(\d+) kB")) is not None:
            return num_kib << 10
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _left_in_container(cgroup: Path) -> list[int]:
    """Empty without a limit, or where no container's files are."""
    left = []
    for limit_file, stat_file, held in _CGROUPS:
        with suppress(OSError):
            limit, stat = (cgroup / limit_file).read_text().strip(), (cgroup / stat_file).read_text()
            if limit.isdecimal():
                left.append(max(0, int(limit) - sum(_field(stat, rf"^{name} (\d+)$") or 0 for name in held)))
    return left


def _field(text: str, pattern: str) -> int | None:
    found = re.search(pattern, text, re.MULTILINE)
    return int(found[1]) if found else None
