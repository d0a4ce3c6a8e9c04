"""Attention of decodes and prefills, as the engine calls it, against FlashInfer's if that is installed."""

from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from math import gcd
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from punica_kernels.attention_tiles import AttentionShape, AttentionWorkspace
from punica_kernels.paged_attention import paged_attention
from punica_kernels.shared_prefixes import PrefixGroupTracker
from punica_serve.bench.kernels.accuracy import checked_error
from punica_serve.bench.kernels.bars import draw_bars
from punica_serve.bench.kernels.flashinfer_attention import flashinfer_attention
from punica_serve.bench.kernels.operators import LayerCall
from punica_serve.bench.kernels.setting import HEAD_DIM, KernelBench
from punica_serve.bench.report import Column, TableData, Value
from punica_serve.errors.reasons import first_line
from punica_serve.workload import shipped_workload

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE_SIZE = 16
#: New tokens times tokens of context, of a case on a CPU.
_MAX_CPU_SCORES = 1 << 20
#: Scores that the reference holds at a time, of 8 bytes.
_MAX_REFERENCE_SCORES = 1 << 29
COLUMNS = (
    Column("case", "case"),
    Column("requests", "requests"),
    Column("new_tokens", "new tokens"),
    Column("context", "total context"),
    Column("group", "heads per kv head"),
    Column("head_dim", "head size"),
    Column("window", "window"),
    Column("soft_cap", "soft cap"),
    Column("us", "µs", ".1f"),
    Column("flashinfer_us", "FlashInfer, fa2", ".1f"),
    Column("fa3_us", "fa3", ".1f"),
    Column("times_faster", "x faster", ".2f"),
    Column("floor_us", "floor", ".2f"),
    Column("times_floor", "x floor", ".2f"),
    Column("error", "error", ".1e"),
)


class AttentionCase(NamedTuple):
    """The newest tokens of some requests."""

    name: str
    #: Tokens of each request, including the new ones.
    contexts: tuple[int, ...]
    #: New tokens of each request; with one, they are decodes.
    num_new: int = 1
    #: Query heads that share one head of keys and values.
    group: int = 1
    head_dim: int = HEAD_DIM
    #: Tokens that requests have in common, and how many requests each time.
    prefix: int = 0
    sharers: int = 1
    #: They are read once, as with `engine.shared_prefix_attention`.
    reads_once: bool = False
    #: Tokens that a row sees, itself the last of them; None sees the whole context. Such requests share no prefix.
    window: int | None = None
    #: Scores s become soft_cap * tanh(s / soft_cap); None leaves them.
    soft_cap: float | None = None

    @property
    def num_tokens(self) -> int:
        """Different tokens of all requests that any row sees."""
        num_requests = len(self.contexts)
        seen = sum(context - self.first_seen(context) for context in self.contexts)
        return seen - self.prefix * (num_requests - num_requests // self.sharers)

    def first_seen(self, context: int) -> int:
        """The first token that the first new row of such a request sees."""
        return 0 if self.window is None else max(0, context - self.num_new + 1 - self.window)

    def flop(self, num_heads: int) -> int:
        """Operations of both products, for the positions that causal rows attend to."""
        return 4 * num_heads * self.head_dim * sum(self._num_pairs(context) for context in self.contexts)

    def _num_pairs(self, context: int) -> int:
        """Pairs of a new row and a token that it sees."""
        most = self.window or context
        return sum(min(seen, most) for seen in range(context - self.num_new + 1, context + 1))

    def num_bytes(self, num_heads: int, itemsize: int) -> int:
        """Bytes of keys, values and queries read, and results written."""
        num_rows = len(self.contexts) * self.num_new
        return 2 * (self.num_tokens // self.group + num_rows) * num_heads * self.head_dim * itemsize


@cache
def all_cases() -> tuple[AttentionCase, ...]:
    """Batches of decodes, one with contexts as uneven as the workload's, long ones alone, and some with prefixes, read
    by each or once; whole prompts, long ones too; chunks of long ones, and their few last tokens; layers of Mistral 7B,
    Gemma 3 12B and Gemma 2 9B, which have windows or soft caps.
    """
    halfway = tuple(length.prompt + length.output // 2 for length in shipped_workload(32).lengths)
    return (
        AttentionCase("32 of the workload, halfway", halfway),
        *(
            AttentionCase(f"{count} of {context}", (context,) * count)
            for count, context in ((1, 2048), (8, 1024), (64, 256))
        ),
        AttentionCase("32 of 1024, grouped", (1024,) * 32, group=4),
        *(AttentionCase(f"1 of {context}, grouped", (context,), group=4) for context in (8192, 32768)),
        *(
            AttentionCase(
                f"32 of 1210, 8 share 1000{', grouped' * (group > 1)}{', read once' * reads_once}",
                (1210,) * 32,
                group=group,
                prefix=1000 // PAGE_SIZE * PAGE_SIZE,
                sharers=8,
                reads_once=reads_once,
            )
            for group in (1, 4)
            for reads_once in (False, True)
        ),
        *(
            AttentionCase(f"{new} new of {context}", (context,), new)
            for new in (128, 512, 2048)
            for context in sorted({new, 2048, 4096, 16384})
        ),
        *(
            AttentionCase(f"{new} new of {context}, grouped", (context,), new, group=4)
            for new in (16, 64, 128, 256, 512, 1024, 2048)
            for context in sorted({max(new, 128), 8192})
        ),
        *(
            AttentionCase(f"{new} new of {context}", (context,), new)
            for new, context in ((2048, 8192), (8192, 8192), (2048, 32000))
        ),
        *(
            AttentionCase(f"{new} new of {context}, groups of 8", (context,), new, group=8)
            for new, context in ((512, 32000), (2048, 32000), (32000, 32000))
        ),
        *(
            AttentionCase(f"{new} new of {new}, heads of 256", (new,), new, group=2, head_dim=256)
            for new in (512, 2048)
        ),
        *_mistral_cases(),
        *_gemma_cases(),
    )


def _mistral_cases() -> tuple[AttentionCase, ...]:
    window = 4096
    return (
        AttentionCase(f"32 of 8192, grouped, window of {window}", (8192,) * 32, group=4, window=window),
        *(
            AttentionCase(f"{new} new of 8192, grouped, window of {window}", (8192,), new, group=4, window=window)
            for new in (512, 2048)
        ),
    )


def _gemma_cases() -> tuple[AttentionCase, ...]:
    """Gemma 3 has windows, and Gemma 2 soft caps, with windows in every other layer."""
    heads = AttentionCase("", (), group=2, head_dim=256)
    gemma3, gemma2 = heads._replace(window=1024), heads._replace(soft_cap=50.0)
    return (
        gemma3._replace(name="32 of 8192, heads of 256, window of 1024", contexts=(8192,) * 32),
        *(
            gemma3._replace(name=f"{new} new of 8192, heads of 256, window of 1024", contexts=(8192,), num_new=new)
            for new in (512, 2048)
        ),
        gemma2._replace(name="32 of 2048, heads of 256, soft cap of 50", contexts=(2048,) * 32),
        *(
            gemma2._replace(name=f"{new} new of 2048, heads of 256, soft cap of 50", contexts=(2048,), num_new=new)
            for new in (512, 2048)
        ),
        gemma2._replace(
            name="2048 new of 8192, heads of 256, window of 4096, soft cap of 50",
            contexts=(8192,),
            num_new=2048,
            window=4096,
        ),
    )


class AttentionTensors:
    """One case, with a cache of as many layers as the benchmark has. Pages are scattered, as in a used pool.

    Pages that no row sees, since they are behind the window, take no memory.
    """

    def __init__(self, bench: KernelBench, case: AttentionCase) -> None:
        dtype, device, head_dim = bench.dtype, bench.device, case.head_dim
        heads = _num_heads(bench, case)
        kv_heads = gcd(heads, max(1, heads // case.group))
        self.case = case
        counts = [-(-context // PAGE_SIZE) for context in case.contexts]
        self._page_starts = [0, *accumulate(counts)]
        hidden = [case.first_seen(context) // PAGE_SIZE for context in case.contexts]
        num_pages = self._page_starts[-1] - sum(hidden)
        self._pool = torch.randn(
            num_pages, bench.settings.num_layers, 2, PAGE_SIZE, kv_heads, head_dim, dtype=dtype, device=device
        )
        #: int32, one request's after the other's.
        pages = self._share(_scattered_pages(counts, hidden))
        self.pages = pages.to(device)
        num_requests = len(case.contexts)
        self.q = torch.randn(num_requests * case.num_new, heads, head_dim, dtype=dtype, device=device)
        self.out = torch.empty_like(self.q)
        self._shape = AttentionShape.of(
            num_requests,
            case.num_new,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            dtype=dtype,
            device=device,
            window=case.window,
            shares_prefixes=case.reads_once,
        )
        self._workspace = AttentionWorkspace.of([self._shape], head_dim, device)
        words = np.empty(self._shape.num_words, dtype=np.int32)
        starts = range(0, len(self.q) + 1, case.num_new)
        tables = [table.tolist() for table in pages.tensor_split(self._page_starts[1:-1])]
        groups = PrefixGroupTracker(PAGE_SIZE).groups(tables)
        self._shape.fill(words, case.contexts, starts, self._page_starts, PAGE_SIZE, groups)
        self._tiles = torch.from_numpy(words).to(device)

    def _share(self, pages: Tensor) -> Tensor:
        """Requests begin with the pages of the first one that shares their prefix."""
        num_shared, sharers = self.case.prefix // PAGE_SIZE, self.case.sharers
        for request, start in enumerate(self._page_starts[:-1]):
            first = self._page_starts[request // sharers * sharers]
            pages[start : start + num_shared] = pages[first : first + num_shared].clone()
        return pages

    def layer(self, number: int) -> tuple[Tensor, Tensor]:
        """Keys and values, [pages, page_size, kv_heads, head_dim]: strided views, as in the engine."""
        return self._pool[:, number, 0], self._pool[:, number, 1]

    def attend(self, layer: int) -> None:
        """Runs our kernel, into ``out``."""
        keys, values = self.layer(layer)
        tables = (self.pages, self._tiles, self._shape, self._workspace)
        paged_attention(self.out, self.q, keys, values, *tables, self.case.head_dim**-0.5, self.case.soft_cap)

    def expected(self, layer: int) -> Tensor:
        """The same in float64, by torch."""
        return torch.cat([self._expected(layer, request) for request in range(len(self.case.contexts))])

    def _expected(self, layer: int, request: int) -> Tensor:
        num_new, context = self.case.num_new, self.case.contexts[request]
        own = self.pages[self._page_starts[request] : self._page_starts[request + 1]].long()
        k, v = (pool[own].flatten(0, 1)[:context].double().transpose(0, 1) for pool in self.layer(layer))
        q = self.q[request * num_new : (request + 1) * num_new].transpose(0, 1)
        num_rows = max(1, _MAX_REFERENCE_SCORES // (len(q) * context))
        blocks = [
            _attend(q[:, first : first + num_rows].double(), k, v, context - num_new + first, self.case)
            for first in range(0, num_new, num_rows)
        ]
        return torch.cat(blocks, 1).transpose(0, 1)


def _attend(q: Tensor, k: Tensor, v: Tensor, last_seen: int, case: AttentionCase) -> Tensor:
    """q [heads, rows, head_dim], k and v [kv_heads, context, head_dim] -> like q. The first row sees ``last_seen``."""
    rows_by_kv_head = q.reshape(len(k), -1, case.head_dim)
    scores = (rows_by_kv_head @ k.mT).mul_(case.head_dim**-0.5).view(*q.shape[:2], -1)
    if case.soft_cap is not None:
        scores.div_(case.soft_cap).tanh_().mul_(case.soft_cap)
    seen = torch.ones(scores.shape[1:], dtype=torch.bool, device=q.device).tril(last_seen)
    if case.window is not None:
        seen = seen.triu(last_seen - case.window + 1)
    probs = scores.masked_fill_(~seen, -torch.inf).softmax(-1)
    return (probs.view(*rows_by_kv_head.shape[:2], -1) @ v).view_as(q)


def _scattered_pages(counts: Sequence[int], hidden: Sequence[int]) -> Tensor:
    """int32: so many pages of each request. The hidden ones, which come first, are all its first other one."""
    kept = [count - before for count, before in zip(counts, hidden, strict=True)]
    tables = torch.randperm(sum(kept), dtype=torch.int32).split(kept)
    return torch.cat(
        [table[torch.arange(-before, len(table)).clamp(min=0)] for table, before in zip(tables, hidden, strict=True)]
    )


def measure(bench: KernelBench, cases: tuple[AttentionCase, ...] | None = None) -> TableData:
    """Checks every cell against float64, then times it."""
    cases = _cases_on(bench.device) if cases is None else cases
    bench.begin("paged attention", 2 * len(cases))
    rows: list[tuple[Value, ...]] = []
    missing: set[str] = set()
    for case in cases:
        row, reason = _measure(bench, case)
        rows.append(row)
        if reason:
            missing.add(reason)
    return TableData(
        "paged_attention",
        f"Attention, heads of {bench.settings.hidden_size} in all, {bench.settings.dtype}, µs {bench.how}, cold",
        COLUMNS,
        rows,
        notes=(
            "floor: keys, values, queries and results over the measured copy rate, or operations over the rate of a"
            " large product",
            *(f"FlashInfer was not measured: {reason}" for reason in sorted(missing)),
        ),
    )


def _num_heads(bench: KernelBench, case: AttentionCase) -> int:
    return max(1, bench.settings.hidden_size // case.head_dim)


def _cases_on(device: torch.device) -> tuple[AttentionCase, ...]:
    """All cases on a GPU; a CPU would take minutes for a long prompt."""
    if device.type == "cuda":
        return all_cases()
    return tuple(case for case in all_cases() if case.num_new * sum(case.contexts) <= _MAX_CPU_SCORES)


def _measure(bench: KernelBench, case: AttentionCase) -> tuple[tuple[Value, ...], str | None]:
    """One row, and the reason if FlashInfer was not measured."""
    tensors = AttentionTensors(bench, case)
    expected = tensors.expected(-1)
    error = _error(tensors, tensors.attend, expected, "paged_attention")
    us = bench.time_us(tensors.attend)
    fa2_us, missing = _flashinfer_us(bench, tensors, expected, "fa2")
    fa3_us = None if case.num_new == 1 or missing else _flashinfer_us(bench, tensors, expected, "fa3")[0]
    num_heads = _num_heads(bench, case)
    num_bytes = case.num_bytes(num_heads, bench.dtype.itemsize)
    floor_us = bench.floor_us(num_bytes, flop=case.flop(num_heads))
    theirs = [time for time in (fa2_us, fa3_us) if time]
    times_faster = min(theirs) / us if theirs else None
    what = (case.name, len(case.contexts), case.num_new, sum(case.contexts), case.group)
    layer = (case.head_dim, case.window, case.soft_cap)
    return (*what, *layer, us, fa2_us, fa3_us, times_faster, floor_us, us / floor_us, error), missing


def _flashinfer_us(
    bench: KernelBench, tensors: AttentionTensors, expected: Tensor, backend: Literal["fa2", "fa3"]
) -> tuple[float | None, str | None]:
    """FlashInfer's time, or the reason why it was not measured."""
    case = tensors.case
    arguments = (tensors.q, tensors.out, tensors.layer, tensors.pages, case.contexts, case.num_new)
    try:
        attend = flashinfer_attention(*arguments, backend, window=case.window, soft_cap=case.soft_cap)
        _error(tensors, attend, expected, f"FlashInfer's {backend}")
        return bench.time_us(attend), None
    except (ImportError, RuntimeError) as reason:
        return None, first_line(reason)


def _error(tensors: AttentionTensors, attend: LayerCall, expected: Tensor, name: str) -> float:
    """The error of ``out`` on the last layer."""
    tensors.out.fill_(torch.nan)
    attend(-1)
    return checked_error(tensors.out, expected, f"{name} of {tensors.case.name}")


def draw(table: TableData, figure: "Figure") -> None:
    """Draws bars, a group for each case."""
    series = {"us": "this kernel", "flashinfer_us": "FlashInfer, fa2", "fa3_us": "FlashInfer, fa3"}
    draw_bars(table, figure, series, lambda record: f"{record['case']}")
