"""The cluster's state, from the frames so far. Does no input or output."""

from dataclasses import dataclass, field
from typing import Any

#: Number of events kept: more than any terminal has lines.
MAX_MARKS = 256


@dataclass(slots=True)
class State:
    #: As in GET /v1/cluster; None until it is received.
    cluster: dict[str, Any] | None = None
    #: Events by number, oldest first.
    marks: dict[int, dict[str, Any]] = field(default_factory=dict)
    #: Why there is no newer state; None while there is.
    trouble: str | None = None

    def take(self, frame: dict[str, Any]) -> bool:
        """Applies a frame. Returns whether there is something new to show."""
        match frame["type"]:
            case "cluster":
                self._take_cluster(frame["cluster"])
            case "unavailable":
                self.trouble = frame["error"]["message"]
            case _:  # the history is only for charts
                return False
        return True

    def _take_cluster(self, cluster: dict[str, Any]) -> None:
        if self.cluster is None or self.cluster["incarnation"] != cluster["incarnation"]:
            self.marks.clear()
        self.cluster, self.trouble = cluster, None
        # Frames carry only events that are new or still growing.
        self.marks |= {mark["number"]: mark for mark in cluster["marks"]}
        for number in list(self.marks)[:-MAX_MARKS]:
            del self.marks[number]
