"""Sampling of next tokens from a step's logits, against torch's own operators."""

from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from punica_kernels.sampling import filter_logits, gumbel_noise, sample
from punica_kernels.sampling_rows import Filters, SamplingRows, scale_logits
from punica_serve.bench.kernels.bars import draw_bars
from punica_serve.bench.kernels.operators import LayerCall
from punica_serve.bench.kernels.setting import KernelBench
from punica_serve.bench.report import Column, TableData, Value

if TYPE_CHECKING:
    from matplotlib.figure import Figure

VOCAB_SIZES = (32_000, 128_256)
#: How far the chosen token's float32 score may lie below the best.
_REGRET_LIMIT = 1e-4
_TEMPERATURE, _TOP_K, _TOP_P = 0.8, 50, 0.9
COLUMNS = (
    Column("how", "how"),
    Column("rows", "rows"),
    Column("vocab", "vocabulary", ",d"),
    Column("us", "µs", ",.1f"),
    Column("torch_us", "torch", ",.1f"),
    Column("times_faster", "x faster", ".2f"),
    Column("floor_us", "floor", ".2f"),
    Column("times_floor", "x floor", ".2f"),
)


class SamplingKind(StrEnum):
    """How all rows sample."""

    GREEDY = "greedy"
    TEMPERATURE = "temperature"
    TOP_K = "top_k"
    TOP_P = "top_p"


def measure(bench: KernelBench, row_counts: tuple[int, ...], vocab_sizes: tuple[int, ...] = VOCAB_SIZES) -> TableData:
    """Checks that every row takes its best token, then times it. Every call has its own logits."""
    bench.begin("sampling", 2 * len(SamplingKind) * len(row_counts) * len(vocab_sizes))
    rows = [row for vocab in vocab_sizes for num_rows in row_counts for row in _measure(bench, num_rows, vocab)]
    return TableData(
        "sampling",
        f"Sampling from {bench.settings.dtype} logits, µs {bench.how} on cold logits",
        COLUMNS,
        rows,
        notes=(
            f"temperature {_TEMPERATURE}; top_k {_TOP_K} and top_p {_TOP_P} at that temperature, for all rows",
            "torch: argmax, or softmax followed by multinomial's own method, exponential noise, without its checks;"
            " its top_p sorts",
            "floor: the logits read once at the measured copy rate, at least two empty kernels",
        ),
    )


def _measure(bench: KernelBench, num_rows: int, vocab: int) -> list[tuple[Value, ...]]:
    """The cells of one shape, which share the logits."""
    logits = torch.empty(bench.settings.num_layers, num_rows, vocab, dtype=bench.dtype, device=bench.device)
    logits.normal_(std=3)
    floor_us = bench.floor_us(logits[0].nbytes, num_launches=2)
    found: list[tuple[Value, ...]] = []
    for how in SamplingKind:
        rows, plain = make_rows(how, num_rows, bench.device), torch_way(how)
        _check(how, logits[-1], rows)
        us = bench.time_us(_on_layers(partial(sample, rows=rows), logits))
        torch_us = bench.time_us(_on_layers(plain, logits))
        found.append((how.value, num_rows, vocab, us, torch_us, torch_us / us, floor_us, us / floor_us))
    return found


def _on_layers(choose: Callable[[Tensor], Tensor], logits: Tensor) -> LayerCall:
    return lambda layer: choose(logits[layer])


def make_rows(how: SamplingKind, num_rows: int, device: torch.device) -> SamplingRows:
    """Rows with equal sampling parameters, but separate seeds and positions."""
    temperature = 0.0 if how is SamplingKind.GREEDY else _TEMPERATURE
    numbers = torch.arange(num_rows, device=device)
    filters = None
    if how in (SamplingKind.TOP_K, SamplingKind.TOP_P):
        zeros = torch.zeros(num_rows, device=device)
        filters = Filters(
            rows=numbers,
            top_k=torch.full_like(numbers, _TOP_K if how is SamplingKind.TOP_K else 0),
            top_p=zeros + (_TOP_P if how is SamplingKind.TOP_P else 1.0),
            min_p=zeros,
        )
    return SamplingRows(torch.full((num_rows,), temperature, device=device), numbers * 7919, numbers + 100, filters)


def torch_way(how: SamplingKind) -> Callable[[Tensor], Tensor]:
    """The same distribution from torch's operators, sampled with its own noise."""

    def greedy(logits: Tensor) -> Tensor:
        return logits.argmax(-1)

    def drawn(logits: Tensor) -> Tensor:
        scores = logits.to(torch.float32, copy=True).div_(_TEMPERATURE)
        if how is SamplingKind.TOP_K:
            lowest = scores.topk(_TOP_K).values[:, -1:]
            scores.masked_fill_(scores < lowest, -torch.inf)
        elif how is SamplingKind.TOP_P:
            scores, token_ids = scores.sort(dim=-1, descending=True)
            probs = scores.softmax(-1)
            probs[probs.cumsum(-1) - probs >= _TOP_P] = 0.0
            return token_ids.gather(1, _race(probs)[:, None])[:, 0]
        return _race(scores.softmax(-1))

    return greedy if how is SamplingKind.GREEDY else drawn


def _race(probs: Tensor) -> Tensor:
    return (probs / torch.empty_like(probs).exponential_()).argmax(-1)


def _check(how: SamplingKind, logits: Tensor, rows: SamplingRows) -> None:
    """Raises ArithmeticError unless each row takes its best token, up to rounding of scores."""
    tokens = sample(logits, rows)
    scores = logits.float()
    if how is not SamplingKind.GREEDY:
        scores = scale_logits(logits, rows.temperatures)
        if rows.filters:
            filter_logits(scores, rows.filters.top_k, rows.filters.top_p, rows.filters.min_p)
        scores += gumbel_noise(rows.seeds, rows.positions, logits.shape[1])
    taken = scores.gather(1, tokens.clamp_min(0)[:, None])[:, 0]
    regret = float((scores.amax(-1) - taken).where(tokens >= 0, torch.inf).max())
    if not regret <= _REGRET_LIMIT:
        raise ArithmeticError(f"sample, {how}, of {len(tokens)} rows takes a token {regret:.2e} below the best")


def draw(table: TableData, figure: "Figure") -> None:
    """Draws bars, a group for each shape and sampling method."""
    series = {"us": "this kernel", "torch_us": "torch"}
    draw_bars(table, figure, series, lambda record: f"{record['how']}\n{record['rows']} of {record['vocab']:,}")
