from punica_serve.bench.goals import Goal, goals_table


def test_goals_are_met_at_their_bounds_and_left_out_unmeasured() -> None:
    goals = [
        Goal("speed", 4400.0, 4400, at_least=True),
        Goal("slow", 4399.0, 4400, at_least=True),
        Goal("late", 1.21, 1.2, at_least=False),
        Goal("unknown", None, 1.2, at_least=False),
    ]
    assert goals_table(goals).rows == [
        ("speed", 4400.0, ">= 4,400", "yes"),
        ("slow", 4399.0, ">= 4,400", "no"),
        ("late", 1.21, "<= 1.2", "no"),
    ]
