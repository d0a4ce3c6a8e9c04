"""The table and the goals of placements."""

from collections.abc import Sequence

from punica_serve.bench.control_plane.placement import PlacementTime
from punica_serve.bench.control_plane.settings import PLACEMENT_SIZES
from punica_serve.bench.goals import Goal
from punica_serve.bench.reference_figures import goals
from punica_serve.bench.report import Column, TableData, Value


def placements_table(placements: Sequence[PlacementTime]) -> TableData:
    """Each policy beside punica on a fleet of the same size."""
    columns = (
        Column("policy", "policy"),
        Column("num_gpus", "GPUs", ",d"),
        Column("us", "µs from arrival to start", ".1f"),
        Column("over_punica", "over punica", ".2f"),
        Column("full_us", "µs from end to starts, LoRA pools full", ".0f"),
    )
    us = _us(placements)
    rows: list[tuple[Value, ...]] = [
        (time.policy, time.num_gpus, time.us, time.us / us["punica", time.num_gpus], time.full_us)
        for time in placements
    ]
    notes = (
        "CPU time of a request of 128 tokens, with an adapter of its own, on a half-full fleet",
        "LoRA pools full: of a request's end, and of the starts in its place",
    )
    return TableData("placements", "Placing a request", columns, rows, notes)


def placement_goals(placements: Sequence[PlacementTime]) -> list[Goal]:
    """Those of the fleets that the goals name. There are none if fleets of other sizes were measured."""
    if {time.num_gpus for time in placements} != set(PLACEMENT_SIZES):
        return []
    bounds, us = goals().control_plane, _us(placements)
    small, large = PLACEMENT_SIZES
    return [
        Goal(bounds["placement_us"], us["punica", large]),
        Goal(bounds["rank_aware_over_punica_small"], us["rank_aware", small] / us["punica", small]),
        Goal(bounds["rank_aware_over_punica_large"], us["rank_aware", large] / us["punica", large]),
    ]


def _us(placements: Sequence[PlacementTime]) -> dict[tuple[str, int], float]:
    return {(time.policy, time.num_gpus): time.us for time in placements}
