"""Slack: what is left until the last token is due, once all steps until then are taken."""

from math import inf

import pytest

from placed_requests import PlacedRequests
from punica_scheduler.core.slack import Slack
from punica_serve.protocol import Slo

#: 50 ms a token.
SLO = Slo(time_per_token_s=0.050)


def test_the_least_of_all_counts_and_whoever_leaves_counts_no_more() -> None:
    placed, slack = PlacedRequests(""), Slack()
    assert slack.least_at_0(0.040) == inf
    slack.add(1, placed.request(max_tokens=101, slo=SLO), 0.0)
    slack.add(2, placed.request(max_tokens=11, slo=SLO), 0.0)
    slack.add(3, placed.request(), 0.0)
    assert slack.least_at_0(0.040) == pytest.approx(10 * 0.010)
    assert slack.least_at_0(0.060) == pytest.approx(100 * -0.010)
    slack.remove(2)
    assert slack.least_at_0(0.040) == pytest.approx(100 * 0.010)


def test_a_step_as_long_as_predicted_changes_nothing() -> None:
    placed, slack = PlacedRequests(""), Slack()
    slack.add(1, placed.request(max_tokens=101, slo=SLO), 0.0)
    before_s = slack.least_at_0(0.040)
    slack.stepped()
    assert slack.least_at_0(0.040) - 0.040 == pytest.approx(before_s)


def test_pauses_take_from_each_what_falls_within_its_steps() -> None:
    """A pause of 5 ms in each of the next 50 steps: 10 are left of one request, and all 100 of the other."""
    placed, slack = PlacedRequests(""), Slack()
    slack.add(1, placed.request(max_tokens=11, slo=SLO), 0.0)
    left_s = slack.least_after_pauses(0.040, lambda num_steps: 0.005 * min(num_steps, 50))
    assert left_s == pytest.approx(10 * 0.010 - 10 * 0.005)
    slack.add(2, placed.request(max_tokens=101, slo=SLO), 0.0)
    assert slack.least_after_pauses(0.049, lambda num_steps: 0.005 * min(num_steps, 50)) == pytest.approx(-0.15)
    for _ in range(20):
        slack.stepped()
    left_s = slack.least_after_pauses(0.040, lambda num_steps: 0.005 * num_steps) - 20 * 0.040
    assert left_s == pytest.approx(10 * 0.010 - 0.005), "one that goes on past its end loses a step"


def test_an_answer_of_one_token_has_no_pace_to_keep() -> None:
    slack = Slack()
    slack.add(1, PlacedRequests("").request(max_tokens=1, slo=SLO), 0.0)
    assert slack.least_at_0(0.040) == inf
