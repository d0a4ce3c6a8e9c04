"""The compared batches: over batch size, rank, and number of adapters, with and without LoRA."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from punica_serve.bench.overhead.steady import median_step_s
from punica_serve.bench.report import Column, TableData, Value, numbers
from punica_serve.engine.engine import Engine
from punica_serve.protocol import AdapterRef

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = (
    Column("sweep", "over"),
    Column("batch", "batch"),
    Column("adapters", "adapters"),
    Column("rank", "rank"),
    Column("base_ms", "step without LoRA, ms", ".3f"),
    Column("lora_ms", "with, ms", ".3f"),
    Column("added_ms", "added, ms", ".3f"),
    Column("added_share", "added", ".1%"),
)


@dataclass(frozen=True, slots=True)
class OverheadSettings:
    """The options. Each sweep varies one of the three and fixes the others."""

    batch_sizes: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    ranks: tuple[int, ...] = (8, 16, 32, 64, 128)
    adapter_counts: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    #: Rank in the other two sweeps.
    rank: int = 16
    #: Requests in the sweep over ranks, each with its own adapter.
    batch_size: int = 32
    num_steps: int = 24
    num_profiled_steps: int = 4

    @property
    def max_batch_size(self) -> int:
        return max(*self.batch_sizes, self.batch_size, self.max_adapters)

    @property
    def max_adapters(self) -> int:
        return max(self.adapter_counts)

    @property
    def num_adapters(self) -> dict[int, int]:
        """Rank -> number of adapters needed at a time."""
        needed = dict.fromkeys(self.ranks, self.batch_size)
        needed[self.rank] = max(needed.get(self.rank, 0), self.max_adapters)
        return needed


@dataclass(frozen=True, slots=True)
class Cell:
    """One batch with LoRA."""

    sweep: str
    batch_size: int
    num_adapters: int
    rank: int


def cells(settings: OverheadSettings) -> list[Cell]:
    """The batches of all three sweeps."""
    most = settings.max_adapters
    return [
        *(Cell("batch", batch, min(batch, most), settings.rank) for batch in settings.batch_sizes),
        *(Cell("adapters", most, count, settings.rank) for count in settings.adapter_counts),
        *(Cell("rank", settings.batch_size, settings.batch_size, rank) for rank in settings.ranks),
    ]


def spread(refs: Sequence[AdapterRef], batch_size: int) -> list[AdapterRef | None]:
    """Requests spread evenly over adapters, with an adapter's requests adjacent."""
    return [refs[row * len(refs) // batch_size] for row in range(batch_size)]


def measure(
    engine: Engine,
    settings: OverheadSettings,
    adapters: Callable[[int], Sequence[AdapterRef]],
    advance: Callable[[], None],
) -> TableData:
    """``adapters`` returns those of a rank; it is called for one rank after the other. ``advance`` is called for every
    batch.
    """
    base_s: dict[int, float] = {}
    lora_s: dict[Cell, float] = {}
    found = cells(settings)
    for cell in sorted(found, key=lambda cell: (cell.rank != settings.rank, cell.rank)):
        if cell.batch_size not in base_s:
            base_s[cell.batch_size] = median_step_s(engine, [None] * cell.batch_size, settings.num_steps, advance)
        batch = spread(adapters(cell.rank)[: cell.num_adapters], cell.batch_size)
        lora_s[cell] = median_step_s(engine, batch, settings.num_steps, advance)
    title = f"Time that LoRA adds to a decode step, all projections (median of {settings.num_steps} steps)"
    return TableData("overhead", title, COLUMNS, [_row(cell, base_s[cell.batch_size], lora_s[cell]) for cell in found])


def _row(cell: Cell, base_s: float, lora_s: float) -> tuple[Value, ...]:
    times = (base_s * 1e3, lora_s * 1e3, (lora_s - base_s) * 1e3, lora_s / base_s - 1)
    return (cell.sweep, cell.batch_size, cell.num_adapters, cell.rank, *times)


def num_batches(settings: OverheadSettings) -> int:
    """Number of calls of ``advance``."""
    found = cells(settings)
    return len(found) + len({cell.batch_size for cell in found})


def draw(table: TableData, figure: "Figure") -> None:
    """Draws a panel for each sweep: the step with and without LoRA, and the difference."""
    records = table.records
    sweeps = list(dict.fromkeys(str(record["sweep"]) for record in records))
    figure.set_size_inches(4.5 * len(sweeps), 4)
    for axes, sweep in zip(figure.subplots(1, len(sweeps), squeeze=False)[0], sweeps, strict=True):
        own = [record for record in records if record["sweep"] == sweep]
        xs = numbers(own, sweep)
        for key, label, style in (
            ("lora_ms", "with LoRA", "o-"),
            ("base_ms", "without", "k--"),
            ("added_ms", "added", "s-"),
        ):
            axes.plot(xs, numbers(own, key), style, ms=4, label=label)
        axes.set_xscale("log", base=2)
        axes.set_xticks(xs, [f"{x:g}" for x in xs])
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.set_xlabel({"batch": "batch size", "rank": "rank", "adapters": "adapters in the batch"}[sweep])
        axes.set_ylabel("decode step, ms")
        axes.legend()
    figure.suptitle(table.title, fontsize=11)
