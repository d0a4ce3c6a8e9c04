"""Renders the state as lines for a terminal of any size. Does no input or output."""

from datetime import datetime
from math import floor
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from punica_serve.cli.top.adapter_rows import adapter_table
from punica_serve.cli.top.display import Display
from punica_serve.cli.top.event_kinds import kind_of
from punica_serve.cli.top.gpu_rows import GpuRow, gpu_rows
from punica_serve.cli.top.gpu_table import gpu_table
from punica_serve.cli.top.state import State
from punica_serve.numbers import counted, natural_order

_TITLE = "bold"
_DIM = "dim"
_LEGEND_LINES = 1
#: Rows reserved for adapters and for events, however many GPUs there are.
_KEPT_ROWS = 3


def screen(state: State, url: str, display: Display) -> RenderableType:
    head: list[Text] = [Text(f"Punica Serve at {url}", style=_TITLE, no_wrap=True, overflow=display.overflow)]
    if state.trouble:
        head.append(Text(state.trouble, style="red"))
    if state.cluster is None:
        return Group(*head, Text("waiting for the cluster", style=_DIM))
    cluster = state.cluster
    head += [_counts(cluster), _latencies(cluster), *_promises(cluster)]
    rows = gpu_rows(state, display.order)
    num_lines = None
    if display.height is not None:
        num_head = sum(max(1, -(-text.cell_len // display.width)) for text in head)
        num_lines = max(0, display.height - num_head - _LEGEND_LINES - 1)
    gpus, adapters, events = _shares(num_lines, len(rows), len(cluster["adapters"]), len(state.marks))
    parts = [_gpus(state, rows, gpus, display), _adapters(cluster, adapters, display), _events(state, events, display)]
    return Group(*head, *(part for part in parts if part is not None))


def _shares(num_lines: int | None, *wanted: int) -> list[int]:
    """The number of rows for each part; its title and summary line take two more lines. Earlier parts come first."""
    if num_lines is None:
        return list(wanted)
    given = []
    for index, rows in enumerate(wanted):
        num_parts = len(wanted) - index
        # Later parts keep a few rows; what they don't need is this part's.
        most = min(_KEPT_ROWS + 2, num_lines // num_parts)
        later = sum(min(rows_later + 2, most) for rows_later in wanted[index + 1 :])
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


def _promises(cluster: dict[str, Any]) -> list[Text]:
    """A line of the latencies that were promised, once any promise has been judged."""
    counters, recent = cluster["counters"], cluster["recent"]
    parts = []
    for words, name in (("first token", "first_token"), ("time per token", "time_per_token")):
        kept, broken = (counters.get(f"{name}_{outcome}", 0) for outcome in ("kept", "broken"))
        if kept or broken:
            share = _kept_share(recent["promises"], name)
            parts.append(f"{words} {share}, {kept} kept and {broken} broken in all")
    window = f"promises kept in the last {recent['window_s']:.0f} s"
    return [Text(f"{window}: {'; '.join(parts)}")] if parts else []


def _kept_share(promises: dict[str, int], name: str) -> str:
    """The share that was kept; it is 100 % only if no promise was broken."""
    kept, broken = promises[f"{name}_kept"], promises[f"{name}_broken"]
    return f"{floor(1000 * kept / (kept + broken)) / 10:g} %" if kept or broken else "-"


def _percentiles(times: dict[str, float] | None) -> str:
    return "-" if times is None else "/".join(f"{1e3 * times[p]:.0f}" for p in ("p50", "p90", "p99")) + " ms"


def _gpus(state: State, rows: list[GpuRow], num_shown: int, display: Display) -> RenderableType | None:
    table = gpu_table(rows[:num_shown], state, display) if num_shown else None
    return _with_rest(table, len(rows) - num_shown, "GPU")


def _adapters(cluster: dict[str, Any], num_shown: int, display: Display) -> RenderableType | None:
    table = adapter_table(cluster, num_shown, display) if num_shown else None
    return _with_rest(table, len(cluster["adapters"]) - num_shown, "adapter")


def _events(state: State, num_rows: int, display: Display) -> RenderableType | None:
    """The events, newest first."""
    if not num_rows:
        return None
    lines = [Text("events", style=_DIM)]
    for mark in reversed(list(state.marks.values())[-num_rows:]):
        at = datetime.fromtimestamp(mark["at_ns"] / 1e9).strftime("%H:%M:%S")
        times = f" {mark['count']}x" if mark["count"] > 1 else ""
        names = ", ".join(sorted(map(state.name_of, mark["gpu_uuids"]), key=natural_order))
        text = f"{at} {kind_of(mark).words}{times} {names}".rstrip()
        lines.append(Text(text, no_wrap=True, overflow=display.overflow))
    return Group(*lines)


def _with_rest(shown: RenderableType | None, num_left: int, what: str) -> RenderableType | None:
    if shown is None:
        return Text(counted(num_left, what), style=_DIM) if num_left > 0 else None
    return Group(shown, Text(f"and {counted(num_left, what)} more", style=_DIM)) if num_left > 0 else shown
