"""Compares three layouts of an adapter's weights under the same kernel: does storing them in pages of 8 rank rows cost
time?
"""

from typing import TYPE_CHECKING, get_args

from punica_serve.bench.kernels.case import Case
from punica_serve.bench.kernels.operators import Rows, Sgmv, checked
from punica_serve.bench.kernels.setting import KernelBench
from punica_serve.bench.kernels.weights import Layout
from punica_serve.bench.report import Column, TableData, Value, numbers
from punica_serve.workload import Population

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LAYOUTS: tuple[Layout, ...] = get_args(Layout)
COLUMNS = (
    Column("population", "population"),
    Column("batch", "batch"),
    Column("rank", "rank"),
    *(Column(layout, f"{layout}, µs", ".2f") for layout in LAYOUTS),
    Column("ratio", "scattered / contiguous", ".3f"),
)


def measure(bench: KernelBench, batch_sizes: tuple[int, ...]) -> TableData:
    """Measures Distinct and Identical at ranks 16 and 64."""
    populations = (Population.DISTINCT, Population.IDENTICAL)
    cases = [Case.of(pop, batch, rank) for pop in populations for rank in (16, 64) for batch in batch_sizes]
    bench.begin("layouts", len(cases) * len(LAYOUTS))
    times = {layout: _times(bench, layout, cases) for layout in LAYOUTS}
    rows: list[tuple[Value, ...]] = []
    for number, case in enumerate(cases):
        own = [times[layout][number] for layout in LAYOUTS]
        rows.append((case.name, case.num_rows, case.ranks[0], *own, own[0] / own[-1]))
    return TableData(
        "layouts",
        "LoRA weights in scattered pages, adjacent pages, and one block per adapter, µs",
        COLUMNS,
        rows,
        notes=(
            "one kernel on three layouts: even for contiguous blocks it looks up a page number for every 8 rank rows",
        ),
    )


def _times(bench: KernelBench, layout: Layout, cases: list[Case]) -> list[float]:
    num_pages = max(bench.pages_for(case.num_adapters, case.ranks[0]) for case in cases)
    weights = bench.weights(num_pages, layout=layout)
    times = []
    for case in cases:
        rows = Rows(case.num_rows, weights.h_in, weights.h_out, bench.dtype, bench.device)
        sgmv = Sgmv(weights, case, rows)
        checked(sgmv.pair, weights, case, rows, f"sgmv, {layout}")
        times.append(bench.time_us(sgmv.pair))
    return times


def draw(table: TableData, figure: "Figure") -> None:
    """Draws bars, a group for each case."""
    axes = figure.subplots()
    places = range(len(table.rows))
    for number, layout in enumerate(LAYOUTS):
        axes.bar([place + 0.27 * number for place in places], numbers(table.records, layout), 0.27, label=layout)
    labels = [f"{record['population']}\n{record['batch']}, r {record['rank']}" for record in table.records]
    axes.set_xticks([place + 0.27 for place in places], labels, fontsize=8, rotation=90)
    axes.set_ylabel("µs")
    axes.set_title(table.title, fontsize=10)
    axes.legend()
