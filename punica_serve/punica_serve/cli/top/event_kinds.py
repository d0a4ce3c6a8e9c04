"""The kinds of cluster events: their words in the list, and their letters in the heat map."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

NS_PER_S = 1_000_000_000


class EventKind(NamedTuple):
    letter: str
    words: str


#: In order of importance: where several meet in one cell, the first is drawn.
_KINDS = {
    "gpu_lost": EventKind("X", "lost"),
    "gpu_left": EventKind("L", "left"),
    "gpu_joined": EventKind("J", "joined"),
    "gpu_drained": EventKind("D", "drained"),
    "gpu_taken_back": EventKind("T", "taken back"),
    "consolidated": EventKind("C", "consolidated"),
    "evicted": EventKind("P", "preempted"),
    "migrated": EventKind("M", "moved"),
}
_RANKS = {kind: rank for rank, kind in enumerate(_KINDS.values())}


def kind_of(mark: Mapping[str, Any]) -> EventKind:
    """The kind of an event; "!" stands for one that this version does not know, or that belongs to no GPU."""
    name: str = mark["kind"]
    return _KINDS.get(name) or EventKind("!", name.replace("_", " "))


def kinds_by_cell(marks: Iterable[Mapping[str, Any]]) -> dict[tuple[str, int], EventKind]:
    """The event to draw at each GPU UUID and second."""
    cells: dict[tuple[str, int], EventKind] = {}
    for mark in marks:
        kind, at_s = kind_of(mark), mark["at_ns"] // NS_PER_S
        for uuid in mark["gpu_uuids"]:
            cells[uuid, at_s] = min(cells.get((uuid, at_s), kind), kind, key=importance)
    return cells


def importance(kind: EventKind) -> int:
    """Its place in an order, the most important first."""
    return _RANKS.get(kind, len(_RANKS))
