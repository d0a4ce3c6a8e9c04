from punica_serve.bench.control_plane.placement import PlacementTime
from punica_serve.bench.control_plane.placement_report import placement_goals, placements_table


def _times(small: int, large: int) -> list[PlacementTime]:
    return [
        PlacementTime("punica", small, 4.0, 300.0),
        PlacementTime("rank_aware", small, 6.0, 300.0),
        PlacementTime("punica", large, 20.0, 300.0),
        PlacementTime("rank_aware", large, 50.0, 300.0),
    ]


def test_each_policy_stands_beside_punica_on_as_many_gpus() -> None:
    assert [row["over_punica"] for row in placements_table(_times(16, 32)).records] == [1.0, 1.5, 1.0, 2.5]


def test_goals_are_compared_on_the_fleets_that_they_name_only() -> None:
    assert [(goal.bound.figure, goal.measured) for goal in placement_goals(_times(60, 1_000))] == [
        ("placement by punica at 1,000 GPUs, µs", 20.0),
        ("placement by rank_aware over punica at 60 GPUs", 1.5),
        ("placement by rank_aware over punica at 1,000 GPUs", 2.5),
    ]
    assert placement_goals(_times(16, 32)) == placement_goals(_times(60, 32)) == []
