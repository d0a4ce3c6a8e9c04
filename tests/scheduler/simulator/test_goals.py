"""Goals of a comparison hold where they should, and fail where they should."""

from dataclasses import replace

from punica_scheduler.simulator.goals import goal_checks
from punica_serve.config.simulation_section import PolicyGoals
from punica_serve.simulation.attainment import Attainment
from summaries import GOOD

KEPT = Attainment(1.0, 0.992, 0.992)


def verdicts(goals: PolicyGoals) -> dict[str, bool]:
    summaries = {
        "rank_aware": replace(GOOD, time_per_token_mean_s=0.040, gpu_time_s=80.0, attained=KEPT),
        "most_idle": replace(GOOD, time_per_token_mean_s=0.050, gpu_time_s=100.0, first_token_p99_s=0.5),
    }
    return {check.seen: check.holds for check in goal_checks({"rank_aware": goals, "punica": goals}, summaries)}


def test_each_goal_is_held_against_what_was_seen() -> None:
    met = PolicyGoals(kept=0.99, faster_than={"most_idle": 0.19}, gpu_time=0.85, first_token_p99=2.0)
    assert verdicts(met) == {"99.20%": True, "20.0%": True, "0.80": True, "2.00": True}
    missed = PolicyGoals(kept=0.995, faster_than={"most_idle": 0.21}, gpu_time=0.7, first_token_p99=1.9)
    assert verdicts(missed) == {"99.20%": False, "20.0%": False, "0.80": False, "2.00": False}


def test_policies_that_were_not_run_have_no_goals() -> None:
    assert verdicts(PolicyGoals(faster_than={"random": 0.2})) == {}
