"""One projection's shrink and expand, y += x A B, against its goals, its best peers and the bytes it moves."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from punica_serve.base_model.lora_layout import USUAL_LORA_RANK
from punica_serve.bench.kernels.case import Case
from punica_serve.bench.kernels.operators import Rows, Sgmv, checked
from punica_serve.bench.kernels.setting import POPULATIONS, KernelBench
from punica_serve.bench.kernels.weights import PagedWeights
from punica_serve.bench.reference_figures import Peer, goals, peers
from punica_serve.bench.report import Column, TableData, Value, numbers
from punica_serve.workload import Population

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = (
    Column("case", "case"),
    Column("batch", "rows"),
    Column("adapters", "adapters"),
    Column("rank", "rank"),
    Column("us", "µs", ".2f"),
    Column("no_pdl_us", "no PDL", ".2f"),
    Column("engine_us", "engine's table", ".2f"),
    Column("goal_us", "goal", ".1f"),
    Column("met", "met"),
    Column("no_pdl_met", "no PDL met"),
    Column("peer_us", "best peer", ".1f"),
    Column("peer", "which"),
    Column("times_faster", "x faster", ".2f"),
    Column("floor_us", "floor", ".2f"),
    Column("times_floor", "x floor", ".2f"),
    Column("error", "error", ".1e"),
)


@dataclass(frozen=True, slots=True)
class Target:
    """One row of the table."""

    case: Case
    goal_us: float | None = None
    peer: Peer | None = None


@dataclass(frozen=True, slots=True)
class Pair:
    """The measurements of one row."""

    target: Target
    microseconds: float
    no_pdl_us: float
    #: Without PDL, with a table for any rank.
    engine_us: float
    floor_us: float
    error: float

    @property
    def row(self) -> tuple[Value, ...]:
        case, goal, peer = self.target.case, self.target.goal_us, self.target.peer
        return (
            *(case.name, case.num_rows, case.num_adapters, case.rank_text),
            *(self.microseconds, self.no_pdl_us, self.engine_us),
            *(goal, _met(self.microseconds, goal), _met(self.no_pdl_us, goal)),
            *((peer.microseconds, peer.name, peer.microseconds / self.microseconds) if peer else (None, None, None)),
            *(self.floor_us, self.microseconds / self.floor_us if self.floor_us else None, self.error),
        )


def _met(microseconds: float, goal_us: float | None) -> str | None:
    return None if goal_us is None else "yes" if microseconds <= goal_us else "no"


def targets(batch_sizes: tuple[int, ...], num_prefill_rows: int, *, with_peers: bool) -> list[Target]:
    """Ranks 16 and 64 at every batch size and rank 8 at the largest, for four populations; then a mixed step.

    Peers and goals are for one hidden size and dtype; ``with_peers`` says that this run uses these.
    """
    cells = [(rank, batch) for rank in (16, 64) for batch in batch_sizes] + [(8, max(batch_sizes))]
    found = []
    for rank, batch in cells:
        for population in POPULATIONS if batch > 1 else (Population.DISTINCT,):
            key = (rank, batch, population)
            found.append(Target(Case.of(population, batch, rank), goals().pair_goal(*key), peers().pair_peer(*key)))
    mixed = Case("prefill + 31 decodes", (num_prefill_rows, *[1] * 31), (16,) * 32)
    found.append(Target(mixed, goals().mixed_step_us, peers().mixed_step))
    return found if with_peers else [Target(target.case) for target in found]


def rank_mixes(num_rows: int) -> tuple[Case, Case]:
    """Ranks 8, 16, 32, 64 in turn, and as many rank rows in ranks as equal as pages of 8 allow: 32 and 24."""
    mixed = [rank for rank in (8, 16, 32, 64) for _ in range(num_rows // 4)]
    num_large = 3 * num_rows // 4
    equal = [32] * num_large + [24] * (num_rows - num_large)
    ones = (1,) * num_rows
    return Case("mixed ranks", ones, tuple(mixed)), Case("equal ranks", ones, tuple(equal))


def measure(bench: KernelBench, batch_sizes: tuple[int, ...]) -> TableData:
    """Checks every cell against float64, then times it."""
    settings = bench.settings
    rows = targets(batch_sizes, settings.num_prefill_rows, with_peers=settings.match_peers)
    mixes = rank_mixes(32)
    bench.begin("pair", 3 * (len(rows) + len(mixes)))
    weights = bench.weights(bench.pages_for(max(*batch_sizes, 32), 64))
    measured = [_measure(bench, weights, target) for target in rows]
    mixed, equal = (_measure(bench, weights, Target(case)) for case in mixes)
    ratio = mixed.microseconds / equal.microseconds
    goal_ratio = goals().mixed_ranks_ratio
    met = "met" if ratio <= goal_ratio else "missed"
    hidden = settings.hidden_size
    return TableData(
        "pair",
        f"y += x A B, {hidden} -> rank -> {hidden}, {settings.dtype}, µs {bench.how} on cold weights",
        COLUMNS,
        [pair.row for pair in (*measured, mixed, equal)],
        notes=(
            f"mixed ranks / equal ranks of the same bytes: {ratio:.3f} (goal <= {goal_ratio}: {met})",
            "no PDL: a pair starts when the one before it has ended. None of the peers overlapped its launches;"
            " `x faster` compares them with this kernel's overlapping ones",
            f"engine's table: no PDL, with room for rank {USUAL_LORA_RANK} in the table, as in its graphs; the"
            " others' tables have room for the batch's own ranks",
            "floor: bytes of adapters, x and y over the measured copy rate, at least two empty kernels",
            peers().pair.source,
        ),
    )


def _measure(bench: KernelBench, weights: PagedWeights, target: Target) -> Pair:
    case = target.case
    rows = Rows(case.num_rows, weights.h_in, weights.h_out, bench.dtype, bench.device)
    sgmv = Sgmv(weights, case, rows)
    error = checked(sgmv.pair, weights, case, rows, "sgmv")
    in_engine = Sgmv(weights, case, rows, max_rank=USUAL_LORA_RANK)
    checked(in_engine.isolated_pair, weights, case, rows, "sgmv over the engine's table")
    num_bytes = case.pair_bytes(weights.h_in, weights.h_out, bench.dtype.itemsize)
    floor_us = bench.floor_us(num_bytes, num_launches=2)
    pdl_us, no_pdl_us, engine_us = map(bench.time_us, (sgmv.pair, sgmv.isolated_pair, in_engine.isolated_pair))
    return Pair(target, pdl_us, no_pdl_us, engine_us, floor_us, error)


def draw(table: TableData, figure: "Figure") -> None:
    """Draws bars of this kernel and the best peer, if any; goals are strokes, the byte floor a line."""
    records = table.records
    axes = figure.subplots()
    figure.set_size_inches(12, 5.5)
    places = range(len(records))
    for number, (key, label) in enumerate((("us", "this kernel"), ("peer_us", "best peer"))):
        heights = numbers(records, key)
        axes.bar([place + 0.4 * number for place in places], heights, 0.4, label=label)
    axes.scatter(places, numbers(records, "goal_us"), marker="_", s=200, c="k", label="goal", zorder=3)
    centers = [place + 0.2 for place in places]
    axes.step(centers, numbers(records, "floor_us"), where="mid", color="tab:red", label="floor")
    labels = [f"{record['case']} {record['batch']}\nr {record['rank']}" for record in records]
    axes.set_xticks(centers, labels, rotation=90, fontsize=8)
    axes.set_ylabel("time of one projection's LoRA, µs")
    axes.set_title(table.title, fontsize=10)
    axes.legend()
