"""Figure 9: SGMV at ranks 8, 16, 32 and 64, over batch sizes and populations."""

from typing import TYPE_CHECKING

from punica_serve.bench.kernels.case import Case
from punica_serve.bench.kernels.curves import draw_panels
from punica_serve.bench.kernels.operators import Rows, Sgmv, checked
from punica_serve.bench.kernels.setting import POPULATIONS, KernelBench
from punica_serve.bench.kernels.weights import PagedWeights
from punica_serve.bench.report import Column, TableData

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = (
    Column("population", "population"),
    Column("batch", "batch"),
    Column("adapters", "adapters"),
    Column("rank", "rank"),
    Column("us", "µs", ".2f"),
)


def measure(bench: KernelBench) -> TableData:
    """Checks every cell against float64, then times it."""
    settings = bench.settings
    cases = [
        Case.of(population, batch, rank)
        for population in POPULATIONS
        for rank in settings.ranks
        for batch in settings.batch_sizes
    ]
    bench.begin("figure 9", len(cases))
    weights = bench.weights(bench.pages_for(settings.max_batch_size, max(settings.ranks)))
    rows = [(case.name, case.num_rows, case.num_adapters, case.ranks[0], _time(bench, weights, case)) for case in cases]
    hidden = settings.hidden_size
    title = f"Figure 9: SGMV, {hidden} -> rank -> {hidden}, µs {bench.how} on cold weights"
    return TableData("figure9", title, COLUMNS, rows)


def _time(bench: KernelBench, weights: PagedWeights, case: Case) -> float:
    rows = Rows(case.num_rows, weights.h_in, weights.h_out, bench.dtype, bench.device)
    sgmv = Sgmv(weights, case, rows)
    checked(sgmv.pair, weights, case, rows, "sgmv")
    return bench.time_us(sgmv.pair)


def draw(table: TableData, figure: "Figure") -> None:
    draw_panels(table, figure, line="rank", log=False)
