"""Columns of the GPUs' current figures."""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Any

from rich.cells import cell_len
from rich.text import Text

from punica_serve.cli.top.display import Display
from punica_serve.cli.top.gpu_rows import GpuRow
from punica_serve.config.device_groups import ranks_of

#: Below this width, the least important columns are left out.
WIDE = 90
#: The least width of the heat map, for which columns give way.
_MIN_HEAT = 10
#: Their titles, in this order.
_GIVING_WAY = ("tokens", "group", "adapters", "KvCache")
_DIM = "dim"


@dataclass(frozen=True, slots=True)
class FigureColumn:
    """A column of current figures."""

    title: str
    texts: list[Text]

    @property
    def width(self) -> int:
        return max(cell_len(text.plain) for text in (Text(self.title), *self.texts))


def _all_figures(rows: list[GpuRow], display: Display) -> list[FigureColumn]:
    is_wide = display.width >= WIDE
    bar_width = min(16, (display.width - 60) // 6) if is_wide else 0
    figures = [
        _column("batch", rows, _batch),
        _column("KvCache", rows, lambda gpu: _kv_cache(gpu, bar_width, display)),
        _column("adapters", rows, lambda gpu: Text(f"{gpu['num_adapters']}/{len(gpu['resident_adapters'])}")),
    ]
    if is_wide:
        figures.append(_column("tokens", rows, lambda gpu: Text(f"{gpu['tokens']:,}")))
    if any(row.now and len(ranks_of(row.now["gpu"]["device"])) > 1 for row in rows):
        figures.append(_column("group", rows, lambda gpu: _group(gpu, display)))
    states = [_state(row) for row in rows]
    return [*figures, FigureColumn("", states)] if any(states) else figures


def _column(title: str, rows: list[GpuRow], text_of: Callable[[dict[str, Any]], Text]) -> FigureColumn:
    """A column that is empty for GPUs that have left."""
    return FigureColumn(title, [text_of(row.now) if row.now else Text() for row in rows])


def figures_beside(rows: list[GpuRow], display: Display, width: int) -> list[FigureColumn]:
    """The columns to show in this width, with the heat map."""
    figures = _all_figures(rows, display)
    for title in _GIVING_WAY:
        if width - width_of(figures) >= _MIN_HEAT:
            break
        figures = [column for column in figures if column.title != title]
    return figures


def width_of(figures: list[FigureColumn]) -> int:
    return sum(column.width + 1 for column in figures)


def _batch(gpu: dict[str, Any]) -> Text:
    return Text(f"{gpu['batch_size_mean']:.1f}/{gpu['gpu']['max_batch_size']}")


def _kv_cache(gpu: dict[str, Any], bar_width: int, display: Display) -> Text:
    used = 1 - gpu["free_kv_pages"] / gpu["gpu"]["num_kv_pages"]
    return _bar(used, bar_width, display) + f" {used:4.0%}" if bar_width else Text(f"{used:.0%}")


def _group(gpu: dict[str, Any], display: Display) -> Text:
    """The devices of a group: the first and the last of more than two."""
    devices = ranks_of(gpu["gpu"]["device"])
    if len(devices) == 1:
        return Text()
    between = "," if len(devices) == 2 else ".." if display.is_ascii else "…"
    return Text(f"{devices[0]}{between}{devices[-1]}")


def _state(row: GpuRow) -> Text:
    if row.now is None:
        return Text("gone", style=_DIM)
    return Text("draining", style="yellow") if row.now["is_draining"] else Text()


def _bar(share: float, width: int, display: Display) -> Text:
    full, empty = ("#", ".") if display.is_ascii else ("█", "░")
    num_full = min(width, ceil(share * width))  # any use is visible, however small
    return Text.assemble((full * num_full, "green"), (empty * (width - num_full), _DIM))
