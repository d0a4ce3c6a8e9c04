from punica_serve.bench.goals import Goal, goals_table
from punica_serve.bench.reference_figures import Bound


def test_goals_are_met_at_their_bounds_and_left_out_unmeasured() -> None:
    speed, time = Bound("speed", at_least=4400), Bound("time", at_most=1.2)
    goals = [Goal(speed, 4400.0), Goal(speed, 4399.0, "slow"), Goal(time, 1.21), Goal(time, None)]
    assert goals_table(goals).rows == [
        ("speed", 4400.0, ">= 4,400", "yes"),
        ("speed, slow", 4399.0, ">= 4,400", "no"),
        ("time", 1.21, "<= 1.2", "no"),
    ]
