"""Figure 8: SGMV, a loop, Gather-BMM, the gather alone and BMM alone, over batch sizes and populations."""

from typing import TYPE_CHECKING

from punica_serve.bench.kernels.case import Case
from punica_serve.bench.kernels.curves import draw_panels
from punica_serve.bench.kernels.operators import Rows, Sgmv, checked
from punica_serve.bench.kernels.setting import POPULATIONS, KernelBench
from punica_serve.bench.kernels.torch_operators import TorchOperators
from punica_serve.bench.kernels.weights import PagedWeights
from punica_serve.bench.report import Column, TableData, Value

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RANK = 16
COLUMNS = (
    Column("population", "population"),
    Column("batch", "batch"),
    Column("adapters", "adapters"),
    Column("operator", "operator"),
    Column("us", "µs", ".2f"),
    Column("times_sgmv", "x SGMV", ".2f"),
)
#: SGMV and the four of TorchLora.
_NUM_OPERATORS = 5


def measure(bench: KernelBench) -> TableData:
    """Checks every operator against float64, except the gather, which multiplies nothing; then times it."""
    cells = [(population, batch) for population in POPULATIONS for batch in bench.settings.batch_sizes]
    bench.begin("figure 8", len(cells) * _NUM_OPERATORS)
    weights = bench.weights(bench.pages_for(bench.settings.max_batch_size, RANK))
    rows = [row for population, batch in cells for row in _measure(bench, weights, Case.of(population, batch, RANK))]
    hidden = bench.settings.hidden_size
    title = f"Figure 8: LoRA operators, {hidden} -> {RANK} -> {hidden}, µs {bench.how} on cold weights"
    return TableData("figure8", title, COLUMNS, rows)


def _measure(bench: KernelBench, weights: PagedWeights, case: Case) -> list[tuple[Value, ...]]:
    rows = Rows(case.num_rows, weights.h_in, weights.h_out, bench.dtype, bench.device)
    sgmv = Sgmv(weights, case, rows)
    checked(sgmv.pair, weights, case, rows, "sgmv")
    own_us = bench.time_us(sgmv.pair)
    cell = (case.name, case.num_rows, case.num_adapters)
    found: list[tuple[Value, ...]] = [(*cell, "SGMV", own_us, 1.0)]
    for name, make in TorchOperators(weights, case, rows).operators.items():
        call = make()
        if name != "gather":
            checked(call, weights, case, rows, name)
        microseconds = bench.time_us(call)
        found.append((*cell, name, microseconds, microseconds / own_us))
    return found


def draw(table: TableData, figure: "Figure") -> None:
    draw_panels(table, figure, line="operator", log=True)
