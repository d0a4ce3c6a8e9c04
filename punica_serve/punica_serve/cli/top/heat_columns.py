"""Mean batch sizes of all GPUs, one column a second: the history first, then a column for each frame."""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from punica_serve.cli.top.event_kinds import NS_PER_S

#: More than a row of any usual terminal has room for. At a thousand GPUs that is some 30 MB.
MAX_COLUMNS = 300
#: A column also stands for the seconds since the one before, up to this many: frames may come every 10 s.
FILL_S = 12


@dataclass(frozen=True, slots=True)
class HeatColumn:
    #: Seconds since 1970.
    at_s: int
    #: GPU UUID -> mean batch size. GPUs that were not in the cluster are missing.
    batch_sizes: Mapping[str, float]


@dataclass(slots=True)
class HeatColumns:
    """The heat map's columns: at most MAX_COLUMNS, without a gap, oldest first."""

    _columns: deque[HeatColumn] = field(default_factory=lambda: deque(maxlen=MAX_COLUMNS))
    #: Nothing is known of the seconds after the newest column.
    _is_interrupted: bool = False

    def add_history(self, history: dict[str, Any]) -> None:
        """Adds the newest rows of a history; they replace columns of the same time."""
        times_ns = history["at_ns"]
        means = {uuid: gpu["batch_size_mean"] for uuid, gpu in history["gpus"].items()}
        for row in range(max(0, len(times_ns) - MAX_COLUMNS), len(times_ns)):
            there = {uuid: column[row] for uuid, column in means.items() if column[row] is not None}
            self._add(times_ns[row], there)

    def add_cluster(self, cluster: dict[str, Any]) -> None:
        """Adds the second of a cluster view. A later view of the same second replaces the earlier one."""
        self._add(cluster["now_ns"], {gpu["gpu"]["uuid"]: gpu["batch_size_mean"] for gpu in cluster["gpus"]})

    def interrupt(self) -> None:
        """The seconds until the next column stay empty."""
        self._is_interrupted = True

    def newest(self, count: int) -> list[HeatColumn]:
        """The newest columns, at most ``count``, oldest first."""
        return list(islice(self._columns, max(0, len(self._columns) - count), None))

    def _add(self, at_ns: int, batch_sizes: Mapping[str, float]) -> None:
        at_s = at_ns // NS_PER_S
        while self._columns and self._columns[-1].at_s >= at_s:  # the same second, or the clock was set back
            self._columns.pop()
        missing = {} if self._is_interrupted or self._gap_s(at_s) > FILL_S else batch_sizes
        self._columns.extend(HeatColumn(second, missing) for second in self._seconds_before(at_s))
        self._columns.append(HeatColumn(at_s, batch_sizes))
        self._is_interrupted = False

    def _gap_s(self, at_s: int) -> int:
        return at_s - self._columns[-1].at_s if self._columns else 0

    def _seconds_before(self, at_s: int) -> Iterator[int]:
        if self._columns:
            yield from range(max(self._columns[-1].at_s + 1, at_s - MAX_COLUMNS), at_s)
