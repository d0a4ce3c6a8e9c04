"""The cluster's state, from the frames so far. Does no input or output."""

from dataclasses import dataclass, field
from typing import Any

from punica_serve.cli.top.heat_columns import HeatColumns

#: Number of events kept: more than any terminal has lines.
MAX_MARKS = 256
#: Number of GPUs remembered, with those that have left.
MAX_KNOWN_GPUS = 4096


@dataclass(frozen=True, slots=True)
class KnownGpu:
    """A GPU's name and size, which do not change."""

    name: str
    max_batch_size: int


@dataclass(slots=True)
class State:
    #: As in GET /v1/cluster; None until it is received.
    cluster: dict[str, Any] | None = None
    #: Events by number, oldest first.
    marks: dict[int, dict[str, Any]] = field(default_factory=dict)
    #: Why there is no newer state; None while there is.
    trouble: str | None = None
    columns: HeatColumns = field(default_factory=HeatColumns)
    #: GPUs by UUID, those seen last at the end.
    known: dict[str, KnownGpu] = field(default_factory=dict)

    def take(self, frame: dict[str, Any]) -> bool:
        """Applies a frame. Returns whether there is something new to show."""
        match frame["type"]:
            case "cluster":
                self._take_cluster(frame["cluster"])
            case "history":  # a cluster follows at once
                self.columns.add_history(frame["history"])
                return False
            case "unavailable":
                self.trouble = frame["error"]["message"]
                self.columns.interrupt()
            case _:
                return False
        return True

    def name_of(self, uuid: str) -> str:
        """The GPU's name; the UUID of one that left before this view began."""
        gpu = self.known.get(uuid)
        return gpu.name if gpu else uuid

    def _take_cluster(self, cluster: dict[str, Any]) -> None:
        if self.cluster is None or self.cluster["incarnation"] != cluster["incarnation"]:
            self.marks.clear()
        self.cluster, self.trouble = cluster, None
        self.columns.add_cluster(cluster)
        self._remember(cluster["gpus"])
        # Frames carry only events that are new or still growing.
        self.marks |= {mark["number"]: mark for mark in cluster["marks"]}
        for number in list(self.marks)[:-MAX_MARKS]:
            del self.marks[number]

    def _remember(self, gpus: list[dict[str, Any]]) -> None:
        for gpu in gpus:
            info = gpu["gpu"]
            self.known.pop(info["uuid"], None)
            self.known[info["uuid"]] = KnownGpu(info["name"], info["max_batch_size"])
        for uuid in list(self.known)[: -max(MAX_KNOWN_GPUS, len(gpus))]:
            del self.known[uuid]
