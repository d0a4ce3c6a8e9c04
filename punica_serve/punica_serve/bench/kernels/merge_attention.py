"""The merge of divided attention, as the engine runs it behind each layer's decodes."""

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from punica_kernels.merge_attention import merge_attention
from punica_serve.bench.kernels.accuracy import checked_error
from punica_serve.bench.kernels.bars import draw_bars
from punica_serve.bench.kernels.setting import KernelBench
from punica_serve.bench.report import Column, TableData, Value

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEAD_DIM = 128
COLUMNS = (
    Column("rows", "rows"),
    Column("copies", "copies"),
    Column("divided", "divided rows"),
    Column("us", "µs", ".2f"),
    Column("unchained_us", "unchained", ".2f"),
    Column("torch_us", "torch", ".2f"),
    Column("times_faster", "x faster", ".1f"),
    Column("floor_us", "floor", ".2f"),
    Column("error", "error", ".1e"),
)


class Copies(NamedTuple):
    """How the copies of a step's queries are spread over its decodes."""

    num_rows: int
    num_copies: int
    #: The rows that share the copies.
    num_divided: int

    @property
    def starts(self) -> list[int]:
        """Of each row's copies, and the end."""
        return [min(row, self.num_divided) * self.num_copies // self.num_divided for row in range(self.num_rows + 1)]

    def num_bytes(self, num_heads: int, itemsize: int) -> int:
        """Every part of a divided row and its weight read once, the row written."""
        num_parts = self.num_copies + self.num_divided
        values = (num_parts + self.num_divided) * num_heads * HEAD_DIM * itemsize
        return values + num_parts * num_heads * torch.float32.itemsize


#: The engine has one copy for four decodes; all may be one long request's.
CASES = (Copies(32, 8, 1), Copies(32, 8, 4), Copies(32, 8, 8), Copies(64, 16, 1), Copies(64, 16, 16))


def measure(bench: KernelBench, cases: tuple[Copies, ...] = CASES) -> TableData:
    """Checks every cell against float64, then times it. Parts are hot in the cache, as where they were just written."""
    bench.begin("merge attention", 3 * len(cases))
    num_heads = bench.settings.hidden_size // HEAD_DIM
    return TableData(
        "merge_attention",
        f"Merge of attention's parts, {num_heads} heads of {HEAD_DIM}, {bench.settings.dtype}, µs in a CUDA graph",
        COLUMNS,
        [_measure(bench, copies, num_heads) for copies in cases],
        notes=("floor: one empty kernel, or the parts over the measured copy rate",),
    )


def _measure(bench: KernelBench, copies: Copies, num_heads: int) -> tuple[Value, ...]:
    num_parts = copies.num_rows + copies.num_copies
    out = torch.randn(num_parts, num_heads, HEAD_DIM, dtype=bench.dtype, device=bench.device)
    log_sums = torch.randn(num_parts, num_heads, device=bench.device) * 3
    starts = torch.tensor(copies.starts, dtype=torch.int32, device=bench.device)
    expected = out.double().cpu()
    merge_attention(expected, log_sums.cpu(), starts.cpu())
    expected = expected[: copies.num_rows].to(bench.device)
    plain = _PlainMerge(copies, out.clone(), log_sums)
    # The chained launch last: what it leaves is merged again and again while it is timed.
    what = f"merge_attention of {copies.num_copies} copies of {copies.num_divided} rows"
    checked_error(plain(), expected, f"torch, {what}")
    merge_attention(out, log_sums, starts)
    error = checked_error(out[: copies.num_rows], expected, what)
    us = bench.time_us(lambda _: merge_attention(out, log_sums, starts, chained=True))
    unchained_us = bench.time_us(lambda _: merge_attention(out, log_sums, starts))
    torch_us = bench.time_us(lambda _: plain())
    floor_us = bench.floor_us(copies.num_bytes(num_heads, bench.dtype.itemsize))
    return (*copies, us, unchained_us, torch_us, torch_us / us, floor_us, error)


class _PlainMerge:
    """The same in torch's own operators, a launch for each step of the formula."""

    def __init__(self, copies: Copies, out: Tensor, log_sums: Tensor) -> None:
        starts = copies.starts
        counts = torch.tensor(starts).diff()
        rows = torch.arange(copies.num_rows)
        #: The row that each part belongs to.
        self._owners = torch.cat([rows, rows.repeat_interleave(counts)]).to(out.device)
        self._heads_owners = self._owners[:, None].expand_as(log_sums)
        self._num_rows, self._parts, self._log_sums = copies.num_rows, out, log_sums

    def __call__(self) -> Tensor:
        owners, log_sums = self._owners, self._log_sums
        highest = log_sums[: self._num_rows].scatter_reduce(0, self._heads_owners, log_sums, "amax")
        weights = torch.exp2(log_sums - highest[owners])
        total = torch.zeros_like(highest).index_add_(0, owners, weights)
        weighted = self._parts.float() * (weights / total[owners])[:, :, None]
        merged = torch.zeros_like(weighted[: self._num_rows]).index_add_(0, owners, weighted)
        return merged.to(self._parts.dtype)


def draw(table: TableData, figure: "Figure") -> None:
    """Bars, a group for each way that copies are spread."""
    series = {"us": "this kernel", "unchained_us": "unchained", "torch_us": "torch"}
    draw_bars(
        table, figure, series, lambda record: f"{record['copies']} copies\n{record['divided']} of {record['rows']}"
    )
