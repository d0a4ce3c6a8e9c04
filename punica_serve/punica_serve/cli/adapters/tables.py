"""Tables of adapters."""

from collections.abc import Iterable
from typing import Any

from rich.table import Column, Table
from rich.text import Text

_MIB = 1 << 20
_TIERS = ("gpus", "hosts", "disks")


def adapter_table(adapters: Iterable[dict[str, Any]]) -> Table:
    """One row per adapter: its properties, and the number of GPUs, hosts and disks that hold it."""
    table = Table(Column("adapter", overflow="fold"), "version", "rank", "MiB", "GPUs", "hosts", "disks", "", box=None)
    for adapter in adapters:
        table.add_row(
            Text(adapter["full_name"]),
            str(adapter["version"]),
            str(max(adapter["ranks"].values())),
            f"{adapter['num_bytes'] / _MIB:.1f}",
            *_counts(adapter["residency"]),
            _remarks(adapter),
        )
    return table


def _remarks(adapter: dict[str, Any]) -> Text:
    """Whether it is pinned, and for which base model it is if that is another service's."""
    others = "" if adapter["served"] else f"for {adapter['registered_for']}"
    return Text(", ".join(filter(None, ("pinned" if adapter["pinned"] else "", others))))


def _counts(residency: dict[str, Any] | None) -> list[str]:
    """The counts; unknown while the scheduler can't be reached."""
    if residency is None:
        return ["?"] * len(_TIERS)
    return [str(len(residency[tier])) for tier in _TIERS]
