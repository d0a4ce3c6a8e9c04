"""A prefill's attention, as the engine calls it, against FlashInfer's where that is installed."""

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from punica_kernels.paged_attention import paged_attention
from punica_serve.bench.kernels.accuracy import checked_error
from punica_serve.bench.kernels.bars import draw_bars
from punica_serve.bench.kernels.flashinfer_prefill import flashinfer_prefill
from punica_serve.bench.kernels.operators import LayerCall
from punica_serve.bench.kernels.setting import KernelBench
from punica_serve.bench.report import Column, TableData, Value

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEAD_DIM, PAGE_SIZE = 128, 16
COLUMNS = (
    Column("new_tokens", "new tokens"),
    Column("context", "context"),
    Column("us", "µs", ".1f"),
    Column("flashinfer_us", "FlashInfer", ".1f"),
    Column("times_faster", "x faster", ".2f"),
    Column("floor_us", "floor", ".2f"),
    Column("times_floor", "x floor", ".2f"),
    Column("error", "error", ".1e"),
)


class Prefill(NamedTuple):
    """The newest tokens of one request."""

    num_new: int
    #: All tokens, the new ones too.
    context: int

    def flop(self, num_heads: int) -> int:
        """Both products, of what causal rows see."""
        num_seen = self.num_new * self.context - self.num_new * (self.num_new - 1) // 2
        return 4 * num_heads * HEAD_DIM * num_seen

    def num_bytes(self, num_heads: int, itemsize: int) -> int:
        """Keys and values of the context and the queries read, the results written."""
        return 2 * (self.context + self.num_new) * num_heads * HEAD_DIM * itemsize


#: Whole prompts, the first chunks of long ones, and their last.
PREFILLS = tuple(Prefill(new, context) for new in (128, 512, 2048) for context in sorted({new, 2048, 4096}))


class PrefillTensors:
    """One prefill on a cache of as many layers as the bench has. Pages lie anywhere, as in a pool that has served."""

    def __init__(self, bench: KernelBench, prefill: Prefill) -> None:
        num_heads, dtype, device = bench.settings.hidden_size // HEAD_DIM, bench.dtype, bench.device
        self.prefill = prefill
        num_pages = -(-prefill.context // PAGE_SIZE)
        self._pool = torch.randn(
            num_pages, bench.settings.num_layers, 2, PAGE_SIZE, num_heads, HEAD_DIM, dtype=dtype, device=device
        )
        #: int32 [pages of the context], in their order.
        self.pages = torch.randperm(num_pages).to(device, torch.int32)
        self.q = torch.randn(prefill.num_new, num_heads, HEAD_DIM, dtype=dtype, device=device)
        self.out = torch.empty_like(self.q)
        self._page_starts = torch.tensor([0, num_pages], dtype=torch.int32, device=device)
        self._lengths = torch.tensor([prefill.context], dtype=torch.int32, device=device)
        self._starts = torch.tensor([0, prefill.num_new], dtype=torch.int32, device=device)

    def layer(self, number: int) -> tuple[Tensor, Tensor]:
        """Keys and values, [pages, page_size, heads, head_dim]: strided views, as the engine has them."""
        return self._pool[:, number, 0], self._pool[:, number, 1]

    def attend(self, layer: int) -> None:
        """Our kernel, into ``out``."""
        paged_attention(
            *(self.out, self.q, *self.layer(layer), self.pages, self._page_starts, self._lengths, self._starts),
            self.prefill.num_new,
            HEAD_DIM**-0.5,
        )

    def expected(self, layer: int) -> Tensor:
        """torch's attention in float64."""
        num_new, context = self.prefill
        k, v = (pool[self.pages.long()].flatten(0, 1)[:context].double() for pool in self.layer(layer))
        seen = torch.ones(num_new, context, dtype=torch.bool, device=k.device).tril(context - num_new)
        q, k, v = (tensor.transpose(0, 1) for tensor in (self.q.double(), k, v))
        attended: Tensor = scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return attended.transpose(0, 1)


def measure(bench: KernelBench, prefills: tuple[Prefill, ...] = PREFILLS) -> TableData:
    """Checks every cell against float64, then times it."""
    bench.begin("paged attention", 2 * len(prefills))
    rows: list[tuple[Value, ...]] = []
    missing: set[str] = set()
    for prefill in prefills:
        row, reason = _measure(bench, prefill)
        rows.append(row)
        if reason:
            missing.add(reason)
    num_heads = bench.settings.hidden_size // HEAD_DIM
    return TableData(
        "paged_attention",
        f"Attention of a prefill, {num_heads} heads of {HEAD_DIM}, {bench.settings.dtype}, µs in a CUDA graph, cold",
        COLUMNS,
        rows,
        notes=(
            "floor: keys, values, queries and results over the measured copy rate, or the operations over that of a"
            " large product",
            *(f"FlashInfer was not measured: {reason}" for reason in sorted(missing)),
        ),
    )


def _measure(bench: KernelBench, prefill: Prefill) -> tuple[tuple[Value, ...], str | None]:
    """One row, and why it lacks FlashInfer's figure."""
    tensors = PrefillTensors(bench, prefill)
    expected = tensors.expected(-1)
    error = _error(tensors, tensors.attend, expected, "paged_attention")
    us = bench.time_us(tensors.attend)
    flashinfer_us, missing = None, None
    try:
        flashinfer = flashinfer_prefill(tensors.q, tensors.out, tensors.layer, tensors.pages, prefill.context)
        _error(tensors, flashinfer, expected, "FlashInfer")
        flashinfer_us = bench.time_us(flashinfer)
    except (ImportError, RuntimeError) as reason:
        missing = str(reason).splitlines()[0]
    num_heads = bench.settings.hidden_size // HEAD_DIM
    num_bytes = prefill.num_bytes(num_heads, bench.dtype.itemsize)
    floor_us = bench.floor_us(num_bytes, flop=prefill.flop(num_heads))
    times_faster = flashinfer_us / us if flashinfer_us else None
    return (*prefill, us, flashinfer_us, times_faster, floor_us, us / floor_us, error), missing


def _error(tensors: PrefillTensors, attend: LayerCall, expected: Tensor, name: str) -> float:
    """Of ``out`` on the last layer."""
    tensors.out.fill_(torch.nan)
    attend(-1)
    num_new, context = tensors.prefill
    return checked_error(tensors.out, expected, f"{name} of {num_new} new tokens in {context}")


def draw(table: TableData, figure: "Figure") -> None:
    """Bars, a group for each prefill."""
    series = {"us": "this kernel", "flashinfer_us": "FlashInfer, fa2"}
    draw_bars(table, figure, series, lambda record: f"{record['new_tokens']} new\nof {record['context']}")
