"""Phases of first tokens add up, and a gap counts in the phase that took most of it."""

import pytest

from punica_serve.bench.first_token_phases import (
    JOINING,
    NOTHING,
    PHASES,
    PREFILL,
    TAKING,
    FirstToken,
    PhaseTimeline,
    StepGap,
    phase_times_s,
)
from punica_serve.engine.adapters.load_trace import LoadPhase, LoadTrace


def _trace(asked_s: float, **ends_s: float) -> LoadTrace:
    return LoadTrace("digest", asked_s, _ends_s={LoadPhase[name]: end_s for name, end_s in ends_s.items()})


def _gap(start_s: float, end_s: float) -> StepGap:
    return StepGap(start_s, end_s, 0, 0.0, 0.0, 0.0)


@pytest.fixture
def cold() -> FirstToken:
    return FirstToken(1.0, 1.5, 9.0, 10.0, _trace(1.5, READER=2.0, READING=6.0, STAGING=7.0, COPYING=9.5))


def test_the_phases_of_a_cold_request_add_up_to_its_first_token(cold: FirstToken) -> None:
    lengths_s = {phase: sum(times) for phase, times in phase_times_s([cold]).items()}
    assert lengths_s == {
        TAKING: 0.5,
        LoadPhase.READER.value: 0.5,
        LoadPhase.READING.value: 4.0,
        LoadPhase.STAGING.value: 1.0,
        JOINING: 2.0,
        PREFILL: 1.0,
    }
    assert sum(lengths_s.values()) == cold.token_s - cold.due_s and lengths_s.keys() <= set(PHASES)


def test_a_warm_request_has_no_load(cold: FirstToken) -> None:
    warm = FirstToken(1.0, 1.5, 2.5, 3.0, None)
    assert phase_times_s([warm]) == {TAKING: [0.5], JOINING: [1.0], PREFILL: [0.5]}
    both = phase_times_s([cold, warm])
    assert both[LoadPhase.READING.value] == [4.0, 0.0] and LoadPhase.OPENING.value not in both


def test_a_gap_counts_in_the_phase_that_took_most_of_it(cold: FirstToken) -> None:
    timeline = PhaseTimeline([FirstToken(20.0, 21.0, 22.0, 23.0, None), cold])
    assert timeline.phase_of(_gap(1.9, 4.0)) == LoadPhase.READING.value
    assert timeline.phase_of(_gap(6.5, 8.5)) == JOINING
    assert timeline.phase_of(_gap(9.0, 11.5)) == NOTHING
    assert timeline.phase_of(_gap(9.0, 10.5)) == PREFILL
    assert timeline.phase_of(_gap(20.0, 20.9)) == TAKING
    assert [len(gaps) for gaps in timeline.sort([_gap(30, 31), _gap(2, 3)]).values() if gaps] == [1, 1]


def test_without_arrivals_no_phase_has_gaps() -> None:
    assert PhaseTimeline([]).phase_of(_gap(0.0, 1.0)) == NOTHING
