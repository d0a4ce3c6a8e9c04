"""The table of goals."""

import pytest

from punica_serve.bench.kernels import pair
from punica_serve.bench.kernels.case import Case
from punica_serve.bench.kernels.pair import Pair, Target, rank_mixes, targets
from punica_serve.bench.kernels.setting import KernelBench, KernelSettings
from punica_serve.bench.reference_figures import Peer
from punica_serve.workload import Population


def test_every_goal_is_in_the_table() -> None:
    found = targets((1, 8, 32, 64), 512, with_peers=True)
    with_goal = {(g.case.name, g.case.num_rows, g.case.ranks[0]): g.goal_us for g in found if g.goal_us is not None}
    assert with_goal == {
        ("distinct", 1, 16): 3.0,
        ("distinct", 32, 16): 5.5,
        ("distinct", 64, 16): 8.0,
        ("uniform", 64, 16): 5.0,
        ("skewed", 64, 16): 5.0,
        ("identical", 64, 16): 5.0,
        ("distinct", 64, 64): 22.0,
        ("prefill + 31 decodes", 543, 16): 15.0,
    }
    assert all(goal.peer for goal in found if goal.goal_us is not None)
    assert {(g.case.ranks[0], g.case.num_rows) for g in found} >= {(8, 64), (64, 1), (16, 8)}
    assert not any(goal.goal_us or goal.peer for goal in targets((1, 8), 512, with_peers=False))


def test_mixed_and_equal_ranks_hold_the_same_bytes() -> None:
    mixed, equal = rank_mixes(32)
    assert mixed.num_rows == equal.num_rows == 32
    assert sum(mixed.ranks) == sum(equal.ranks) == 960
    assert set(mixed.ranks) == {8, 16, 32, 64} and set(equal.ranks) == {24, 32}


@pytest.mark.parametrize(
    ("microseconds", "no_pdl_us", "met", "no_pdl_met"),
    [(3.0, 3.0, "yes", "yes"), (3.0, 4.0, "yes", "no"), (3.1, 4.0, "no", "no")],
)
def test_a_row_says_whether_its_goal_is_met(microseconds: float, no_pdl_us: float, met: str, no_pdl_met: str) -> None:
    target = Target(Case.of(Population.DISTINCT, 1, 16), 3.0, Peer("peer", 6.2))
    row = Pair(target, microseconds, no_pdl_us, 3.5, 1.5, 1e-3).row
    record = dict(zip([column.key for column in pair.COLUMNS], row, strict=True))
    assert record["met"] == met and record["no_pdl_met"] == no_pdl_met
    assert record["engine_us"] == 3.5
    assert record["times_floor"] == microseconds / 1.5
    assert record["times_faster"] == 6.2 / microseconds


def test_it_measures_every_cell(bench: KernelBench) -> None:
    table = pair.measure(bench, (1, 4))
    # Rank 16 and 64 at one row and at four of four populations, rank 8 at four; a mixed step; two mixes of ranks.
    assert len(table.rows) == 2 * (1 + 4) + 4 + 1 + 2
    assert all(record["us"] and record["engine_us"] and record["error"] for record in table.records)
    assert table.notes[0].startswith("mixed ranks / equal ranks of the same bytes: ")


def test_peers_stand_beside_their_own_size_and_dtype() -> None:
    assert KernelSettings().match_peers
    assert not KernelSettings(dtype="float16").match_peers and not KernelSettings(hidden_size=5120).match_peers
