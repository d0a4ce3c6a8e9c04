"""The adapters' rows."""

from typing import Any

from rich.table import Column, Table
from rich.text import Text

from punica_serve.cli.top.display import Display


def adapter_table(cluster: dict[str, Any], num_rows: int, display: Display) -> Table:
    """The adapters on GPUs with their owners, the most recently used first."""
    num_gpus: dict[str, int] = {}
    used_ns: dict[str, int] = {}
    for gpu in cluster["gpus"]:
        for digest, at_ns in zip(gpu["resident_adapters"], gpu["adapters_used_ns"], strict=True):
            num_gpus[digest] = num_gpus.get(digest, 0) + 1
            used_ns[digest] = max(used_ns.get(digest, 0), at_ns)
    table = Table(
        Column("adapter", no_wrap=True, overflow=display.overflow, ratio=3),
        Column("owner", no_wrap=True, overflow=display.overflow, ratio=1),
        Column("rank", justify="right", no_wrap=True, overflow=display.overflow),
        Column("on GPUs", justify="right", no_wrap=True, overflow=display.overflow),
        Column("used", justify="right", no_wrap=True, overflow=display.overflow),
        box=None,
        expand=True,
        padding=(0, 1, 0, 0),
        header_style="dim",
    )
    for digest in sorted(num_gpus, key=lambda digest: (-used_ns[digest], digest))[:num_rows]:
        adapter = cluster["adapters"][digest]
        table.add_row(
            Text(adapter["name"] or digest),
            Text(adapter["owner"] or "?"),
            "?" if adapter["rank"] is None else str(adapter["rank"]),
            str(num_gpus[digest]),
            _ago(cluster["now_ns"], used_ns[digest]),
        )
    return table


def _ago(now_ns: int, at_ns: int) -> str:
    if not at_ns:
        return "never"
    seconds = (now_ns - at_ns) / 1e9
    return "now" if seconds < 1 else f"{seconds:.0f} s ago" if seconds < 120 else f"{seconds / 60:.0f} min ago"
