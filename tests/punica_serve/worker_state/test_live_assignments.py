import pytest

from punica_serve.protocol import AssignmentId
from punica_serve.worker_state.live_assignments import LiveAssignments

FIRST, SECOND = AssignmentId(7, 1), AssignmentId(7, 2)


@pytest.fixture
def live() -> LiveAssignments:
    live = LiveAssignments()
    live.start("a", FIRST)
    live.start("b", SECOND)
    return live


def test_either_side_finds_the_other(live: LiveAssignments) -> None:
    assert live.by_request == {"a": FIRST, "b": SECOND} and list(live) == [FIRST, SECOND]
    assert live.stop(FIRST) == "a" and live.end("b") == SECOND
    assert len(live) == 0
    live.check_invariants()


def test_a_stop_that_comes_after_the_end_finds_nothing(live: LiveAssignments) -> None:
    live.end("a")
    assert live.stop(FIRST) is None
    assert live.stop(AssignmentId(6, 2)) is None, "another incarnation's assignment"
    assert live.by_request == {"b": SECOND}


def test_a_request_may_start_again(live: LiveAssignments) -> None:
    live.stop(FIRST)
    live.start("a", AssignmentId(7, 3))
    assert live.by_request["a"].counter == 3
    live.check_invariants()


def test_a_second_assignment_of_a_request_is_a_bug(live: LiveAssignments) -> None:
    with pytest.raises(AssertionError, match="request a has two assignments"):
        live.start("a", AssignmentId(7, 3))


def test_all_can_be_stopped_in_a_loop(live: LiveAssignments) -> None:
    assert [live.stop(assignment) for assignment in live] == ["a", "b"]


def test_the_audit_finds_a_request_that_was_lost(live: LiveAssignments) -> None:
    del live.by_request["a"]
    with pytest.raises(AssertionError, match="don't match"):
        live.check_invariants()
