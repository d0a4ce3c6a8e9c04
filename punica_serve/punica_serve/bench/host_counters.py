"""How busy the host was during a part of a benchmark: memory, disk, and processors. Linux alone."""

import resource
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path

_PROC = Path("/proc")
_KIB, _TICKS_PER_S = 1024, 100


@dataclass(frozen=True, slots=True)
class HostCounters:
    """Counts since the start of the host or of this process, and sizes at this moment; 0 where the system is silent."""

    #: Memory of the machine, which some virtual machines get as they use it.
    memory_bytes: int = 0
    #: Written to files, and not yet to their disks.
    dirty_bytes: int = 0
    #: Pages that the system looked at while a program waited for memory.
    direct_reclaims: int = 0
    #: Faults of this process that waited for a disk.
    major_faults: int = 0
    #: Bytes that this process read from disks.
    disk_bytes: int = 0
    #: Time that the hypervisor gave to others, over all cores.
    stolen_s: float = 0.0

    @classmethod
    def now(cls, proc: Path = _PROC) -> "HostCounters":
        memory, paging, disk = (_numbers(proc / name) for name in ("meminfo", "vmstat", "self/io"))
        stolen = _first_words(proc / "stat")
        return cls(
            memory.get("MemTotal", 0) * _KIB,
            (memory.get("Dirty", 0) + memory.get("Writeback", 0)) * _KIB,
            paging.get("pgscan_direct", 0),
            resource.getrusage(resource.RUSAGE_SELF).ru_majflt,
            disk.get("read_bytes", 0),
            int(stolen[8]) / _TICKS_PER_S if len(stolen) > 8 else 0.0,
        )

    def since(self, start: "HostCounters") -> "HostCounters":
        """The changes since an earlier moment."""
        return HostCounters(*(getattr(self, each.name) - getattr(start, each.name) for each in fields(self)))


def _numbers(path: Path) -> dict[str, int]:
    """The lines "name number" of a file, with or without a colon."""
    with suppress(OSError):
        words = (line.replace(":", " ").split() for line in path.read_text().splitlines())
        return {line[0]: int(line[1]) for line in words if len(line) > 1 and line[1].isdigit()}
    return {}


def _first_words(path: Path) -> list[str]:
    """The words of a file's first line."""
    with suppress(OSError), path.open() as file:
        return file.readline().split()
    return []
