"""The launch lead, with launches of known times."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from punica_serve.engine.launch_lead import LaunchLead


def launches(lead: LaunchLead, needed_s: list[float]) -> list[bool]:
    """Launches that wait as long as they may and need so long; returns which were late."""
    late = []
    for each_s in needed_s:
        late.append(each_s > lead.seconds)
        lead.learn(lead.seconds, is_late=late[-1])
    return late


@pytest.mark.parametrize("typical_s", [0.0002, 0.0008, 0.0025])
def test_a_small_share_of_launches_is_late(typical_s: float) -> None:
    rng, lead = random.Random(7), LaunchLead()
    launches(lead, [rng.gauss(typical_s, typical_s / 8) for _ in range(500)])
    late = launches(lead, [rng.gauss(typical_s, typical_s / 8) for _ in range(2000)])
    assert 0.06 < sum(late) / len(late) < 0.13
    assert typical_s < lead.seconds < 1.4 * typical_s + 0.0001


def test_slower_launches_are_late_a_few_times_alone() -> None:
    lead = LaunchLead()
    launches(lead, [0.0005] * 200)
    late = launches(lead, [0.0015] * 30)
    assert sum(late[:12]) > 8 and sum(late[12:]) <= 3


def test_one_hiccup_counts_little() -> None:
    lead = LaunchLead()
    launches(lead, [0.0008] * 200)
    before_s = lead.seconds
    launches(lead, [0.100])
    assert lead.seconds <= before_s + 0.0001
    assert not any(launches(lead, [0.0006] * 20)) and lead.seconds == pytest.approx(before_s, abs=0.0002)


def test_a_launch_that_began_early_tells_nothing_if_it_was_in_time() -> None:
    lead = LaunchLead()
    before_s = lead.seconds
    for _ in range(100):
        lead.learn(0.006, is_late=False)
    assert lead.seconds == before_s
    lead.learn(0.006, is_late=True)
    assert lead.seconds > before_s


@given(st.lists(st.tuples(st.floats(0, 0.05), st.booleans()), max_size=300))
def test_it_is_bounded(history: list[tuple[float, bool]]) -> None:
    lead = LaunchLead()
    for left_s, is_late in history:
        lead.learn(left_s, is_late=is_late)
        assert 0.0 <= lead.seconds <= 0.004
