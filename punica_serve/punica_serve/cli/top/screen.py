"""Renders the state as lines for a terminal of any size. Does no input or output."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from math import ceil
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from punica_serve.cli.top.state import State
from punica_serve.numbers import counted

#: Below this width, the least important columns are left out.
WIDE = 90
_TITLE = "bold"
_DIM = "dim"


@dataclass(frozen=True, slots=True)
class Size:
    width: int
    #: None means unlimited.
    height: int | None
    is_ascii: bool = False


def screen(state: State, url: str, size: Size) -> RenderableType:
    head: list[RenderableType] = [Text(f"Punica Serve at {url}", style=_TITLE, no_wrap=True, overflow="ellipsis")]
    if state.trouble:
        head.append(Text(state.trouble, style="red"))
    if state.cluster is None:
        return Group(*head, Text("waiting for the cluster", style=_DIM))
    cluster = state.cluster
    head += [_counts(cluster), _latencies(cluster)]
    num_lines = None if size.height is None else max(0, size.height - 2 - 2 * len(head))
    gpus, adapters, events = _shares(num_lines, len(cluster["gpus"]), len(cluster["adapters"]), len(state.marks))
    parts = [
        _with_rest(_gpus(cluster["gpus"][:gpus], size), len(cluster["gpus"]) - gpus, "GPU"),
        _with_rest(_adapters(cluster, adapters, size), len(cluster["adapters"]) - adapters, "adapter"),
        _events(list(state.marks.values()), events),
    ]
    return Group(*head, *(part for part in parts if part is not None))


def _shares(num_lines: int | None, *wanted: int) -> list[int]:
    """The number of rows for each part; its title and summary line take two more lines. Earlier parts come first."""
    if num_lines is None:
        return list(wanted)
    given = []
    for index, rows in enumerate(wanted):
        num_parts = len(wanted) - index
        # Lines that later parts don't need are this part's.
        later = sum(min(rows_later + 2, num_lines // num_parts) for rows_later in wanted[index + 1 :])
        given.append(max(0, min(rows, num_lines - later - 2)))
        num_lines -= given[-1] + 2
    return given


def _counts(cluster: dict[str, Any]) -> Text:
    recent, advice = cluster["recent"], cluster["advice"]
    text = (
        f"{counted(len(cluster['gpus']), 'GPU')}  {counted(cluster['num_runners'], 'runner')}  "
        f"{counted(cluster['num_frontends'], 'frontend')}  "
        f"queue {cluster['queue_length']}  "
        f"{recent['requests_per_s']:.1f} requests/s  {recent['tokens_per_s']:.0f} tokens/s"
    )
    if advice["num_more_gpus"]:
        text += f"  {counted(advice['num_more_gpus'], 'more GPU')} advised"
    if advice["releasable_runners"]:
        text += f"  releasable: {', '.join(advice['releasable_runners'])}"
    return Text(text)


def _latencies(cluster: dict[str, Any]) -> Text:
    recent = cluster["recent"]
    first, inter = (_percentiles(recent[name]) for name in ("first_token_s", "inter_token_s"))
    return Text(f"p50/p90/p99 of the last {recent['window_s']:.0f} s: first token {first}, between tokens {inter}")


def _percentiles(times: dict[str, float] | None) -> str:
    return "-" if times is None else "/".join(f"{1e3 * times[p]:.0f}" for p in ("p50", "p90", "p99")) + " ms"


def _gpus(gpus: Iterable[dict[str, Any]], size: Size) -> Table:
    is_wide = size.width >= WIDE
    table = Table(
        Column("GPU", no_wrap=True, overflow="ellipsis", ratio=2),
        *([Column("runner", no_wrap=True, overflow="ellipsis", ratio=1)] if is_wide else []),
        Column("batch", no_wrap=True),
        Column("KvCache", no_wrap=True),
        Column("adapters", justify="right", no_wrap=True),
        *([Column("tokens", justify="right", no_wrap=True)] if is_wide else []),
        Column("", no_wrap=True),
        box=None,
        expand=True,
        padding=(0, 1, 0, 0),
        header_style=_DIM,
    )
    bar_width = max(4, min(32, (size.width - 44) // 2))
    for gpu in gpus:
        most, pages = gpu["gpu"]["max_batch_size"], gpu["gpu"]["num_kv_pages"]
        used = 1 - gpu["free_kv_pages"] / pages
        table.add_row(
            Text(gpu["gpu"]["uuid"]),
            *([Text(gpu["runner_id"])] if is_wide else []),
            _bar(gpu["batch_size"] / most, bar_width, size) + f" {gpu['batch_size']:>2}/{most}",
            _bar(used, bar_width // 2, size) + f" {used:4.0%}",
            f"{gpu['num_adapters']}/{len(gpu['resident_adapters'])}",
            *([f"{gpu['tokens']:,}"] if is_wide else []),
            Text("draining", style="yellow") if gpu["is_draining"] else "",
        )
    return table


def _bar(share: float, width: int, size: Size) -> Text:
    full, empty = ("#", ".") if size.is_ascii else ("█", "░")
    num_full = min(width, ceil(share * width))  # any use is visible, however small
    return Text(full * num_full, style="green") + Text(empty * (width - num_full), style=_DIM)


def _adapters(cluster: dict[str, Any], num_rows: int, size: Size) -> Table:
    """The adapters' table, the most recently used first."""
    num_gpus: dict[str, int] = {}
    used_ns: dict[str, int] = {}
    for gpu in cluster["gpus"]:
        for digest, at_ns in zip(gpu["resident_adapters"], gpu["adapters_used_ns"], strict=True):
            num_gpus[digest] = num_gpus.get(digest, 0) + 1
            used_ns[digest] = max(used_ns.get(digest, 0), at_ns)
    table = Table(
        Column("adapter", no_wrap=True, overflow="ellipsis", ratio=1),
        Column("rank", justify="right", no_wrap=True),
        Column("on GPUs", justify="right", no_wrap=True),
        Column("used", justify="right", no_wrap=True),
        box=None,
        expand=True,
        padding=(0, 1, 0, 0),
        header_style=_DIM,
    )
    for digest in sorted(num_gpus, key=lambda digest: (-used_ns[digest], digest))[:num_rows]:
        adapter = cluster["adapters"][digest]
        table.add_row(
            Text(adapter["name"] or digest),
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


def _events(marks: list[dict[str, Any]], num_rows: int) -> RenderableType | None:
    """The events, newest first."""
    if not num_rows:
        return None
    lines = [Text("events", style=_DIM)]
    for mark in reversed(marks[-num_rows:]):
        at = datetime.fromtimestamp(mark["at_ns"] / 1e9).strftime("%H:%M:%S")
        times = f" {mark['count']}x" if mark["count"] > 1 else ""
        where = f" {mark['gpu_uuid']}" if mark["gpu_uuid"] else ""
        text = f"{at} {mark['kind'].replace('_', ' ')}{times}{where}"
        lines.append(Text(text, no_wrap=True, overflow="ellipsis"))
    return Group(*lines)


def _with_rest(table: Table, num_left: int, what: str) -> RenderableType | None:
    if not table.row_count:
        return Text(counted(num_left, what), style=_DIM) if num_left else None
    return Group(table, Text(f"and {counted(num_left, what)} more", style=_DIM)) if num_left > 0 else table
