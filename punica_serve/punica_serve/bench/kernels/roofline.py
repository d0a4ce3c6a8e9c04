"""Figure 7: the roofline of the expand launch, by the paper's count of operations and bytes."""

from typing import TYPE_CHECKING

from punica_serve.bench.kernels.case import Case, paper_bytes, paper_flop
from punica_serve.bench.kernels.operators import Rows, Sgmv, checked
from punica_serve.bench.kernels.setting import POPULATIONS, KernelBench
from punica_serve.bench.report import Column, TableData, numbers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RANK = 16
COLUMNS = (
    Column("population", "population"),
    Column("batch", "batch"),
    Column("adapters", "adapters"),
    Column("us", "µs", ".2f"),
    Column("intensity", "FLOP per byte", ".2f"),
    Column("flop_per_s", "FLOP/s", ".3g"),
    Column("share_of_roof", "share of roof", ".1%"),
)


def measure(bench: KernelBench) -> tuple[TableData, dict[str, float]]:
    """The points, and the roof: bytes/s of a copy and FLOP/s of a large product, both measured."""
    cells = [(population, batch) for population in POPULATIONS for batch in bench.settings.batch_sizes]
    bench.begin("figure 7", len(cells))
    peak = bench.flop_per_s
    weights = bench.weights(bench.pages_for(bench.settings.max_batch_size, RANK))
    rows = []
    for population, batch in cells:
        case = Case.of(population, batch, RANK)
        own = Rows(batch, weights.h_in, weights.h_out, bench.dtype, bench.device)
        sgmv = Sgmv(weights, case, own)
        checked(sgmv.pair, weights, case, own, "sgmv")  # leaves v for the expand
        microseconds = bench.time_us(sgmv.expand)
        flop = paper_flop(batch, RANK, weights.h_out)
        intensity = flop / paper_bytes(batch, case.num_adapters, RANK, weights.h_out)
        flop_per_s = flop / microseconds * 1e6
        share = flop_per_s / min(peak, intensity * bench.copy_bytes_per_s)
        rows.append((population.value, batch, case.num_adapters, microseconds, intensity, flop_per_s, share))
    table = TableData(
        "figure7",
        f"Figure 7: roofline of the expand, h_in {RANK}, h_out {weights.h_out}",
        COLUMNS,
        rows,
        notes=(
            "the paper's count: FLOP = s_n h_i h_o 2, bytes = (s_n (h_i + h_o) + n h_i h_o) 2; this expand also reads y"
            " and float32 partial sums of v, which are not counted",
        ),
    )
    return table, {"copy_bytes_per_s": bench.copy_bytes_per_s, "matmul_flop_per_s": peak}


def draw(table: TableData, roof: dict[str, float], figure: "Figure") -> None:
    """Draws logarithmic axes; the roof is a slope (memory) and a flat top (arithmetic)."""
    axes = figure.subplots()
    ridge = roof["matmul_flop_per_s"] / roof["copy_bytes_per_s"]
    line = [0.5, ridge, 4 * ridge]
    axes.plot(line, [min(roof["matmul_flop_per_s"], x * roof["copy_bytes_per_s"]) for x in line], "k", label="roof")
    for population, marker in zip(POPULATIONS, "os^D", strict=True):
        points = [record for record in table.records if record["population"] == population.value]
        intensities, rates = (numbers(points, key) for key in ("intensity", "flop_per_s"))
        axes.plot(intensities, rates, marker=marker, ms=5, lw=0.8, label=population.value)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("arithmetic intensity, FLOP per byte")
    axes.set_ylabel("achieved FLOP/s")
    sizes = sorted({int(record["batch"] or 0) for record in table.records})
    axes.set_title(f"{table.title}, batch {sizes[0]} to {sizes[-1]}", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend()
