"""A report that repeats the rows of the one before is taken as a whole; nothing else is."""

from typing import Any

import pytest
from msgspec.structs import replace

from punica_scheduler.core import events
from punica_scheduler.core.actions import Deliver
from punica_serve.protocol import Ending
from scheduler_in_words import Cluster


def ending(cluster: Cluster) -> Ending:
    """The newest event's only ending."""
    deliveries = [action.deliveries for action in cluster.actions if isinstance(action, Deliver)]
    (end,) = [end for delivery in deliveries for end in delivery.endings]
    return end


def test_steps_of_the_same_requests_go_on_through_new_pages(cluster: Cluster) -> None:
    for name in ("r1", "r2", "r3"):
        cluster.arrives(name, prompt=len(name), max_tokens=12)
    for position in range(11):
        assert cluster.steps("B", "r1 r2 r3") == [f"{name}: 1 token at {position}" for name in ("r1", "r2", "r3")]
    cluster.steps("B", "r1 r2 r3", finished="r1 r2 r3")
    assert cluster.delivered["r2"] == list(range(100, 112))


def test_each_frontend_gets_its_rows(cluster: Cluster) -> None:
    for name, frontend in (("r1", "f"), ("r2", "g"), ("r3", "f")):
        cluster.arrives(name, frontend=frontend)
    for position in range(3):
        cluster.steps("B", "r1 r2 r3")
        columns = {action.frontend_id: action.deliveries for action in cluster.actions if isinstance(action, Deliver)}
        assert {id_: len(delivery.handles) for id_, delivery in columns.items()} == {"f": 2, "g": 1}
        assert (columns["f"].positions, columns["f"].offset) == ((0, 0), position)


def test_a_request_that_comes_or_goes_ends_the_repetition(cluster: Cluster) -> None:
    cluster.arrives("r1")
    cluster.arrives("r2")
    cluster.steps("B", "r1 r2")
    cluster.steps("B", "r1 r2")
    cluster.arrives("r3")
    assert cluster.steps("B", "r1 r2 r3") == ["r1: 1 token at 2", "r2: 1 token at 2", "r3: 1 token at 0"]
    cluster.is_cancelled("r2")
    late = [(cluster.assignments[name].counter, position) for name, position in (("r1", 3), ("r2", 3), ("r3", 1))]
    assert cluster.reports("B", late, applied=3) == ["r1: 1 token at 3", "r3: 1 token at 1"]
    assert cluster.steps("B", "r1 r3") == ["r1: 1 token at 4", "r3: 1 token at 2"]


@pytest.mark.parametrize("position", [1, 3], ids=["repeat", "gap"])
def test_a_row_at_a_wrong_position_breaks_its_stream_alone(cluster: Cluster, position: int) -> None:
    cluster.arrives("r1")
    cluster.arrives("r2")
    cluster.steps("B", "r1 r2")
    cluster.steps("B", "r1 r2")
    rows = [(cluster.assignments["r1"].counter, 2), (cluster.assignments["r2"].counter, position)]
    assert cluster.reports("B", rows) == ["r1: 1 token at 2", "B: stop r2", "A: start r2 after 2"]


@pytest.mark.parametrize(
    "changes",
    [{"num_repeats": 2}, {"num_repeats": 4}, {"num_repeats": 3, "token_ids": (103,) * 3}],
    ids=["repeat", "gap", "rows"],
)
def test_a_report_without_names_that_does_not_go_on_breaks_all_its_streams(
    cluster: Cluster, changes: dict[str, Any]
) -> None:
    """As if a report between worker and scheduler had been lost, or come twice."""
    cluster.arrives("r1")
    cluster.arrives("r2")
    for _ in range(3):
        cluster.steps("B", "r1 r2")
    event = cluster.scheduler.event_log[-1].event
    assert isinstance(event, events.StepFinished) and event.report.num_repeats == 2
    words = cluster.tell(events.StepFinished(replace(event.report, **changes)))
    assert words == ["B: stop r1", "B: stop r2", "A: start r1 after 3", "A: start r2 after 3"]


def test_a_report_without_names_goes_on_where_one_of_its_rows_was_stopped(cluster: Cluster) -> None:
    for name in ("r1", "r2", "r3"):
        cluster.arrives(name)
    cluster.steps("B", "r1 r2 r3")
    cluster.is_cancelled("r2")
    late = [(cluster.assignments[name].counter, 1) for name in ("r1", "r2", "r3")]
    assert cluster.reports("B", late, applied=3) == ["r1: 1 token at 1", "r3: 1 token at 1"]
    told = cluster.scheduler.event_log[-1].event
    assert isinstance(told, events.StepFinished) and told.report.num_repeats == 1
    late = [(counter, 2) for counter, _ in late]
    assert cluster.reports("B", late, applied=3) == ["r1: 1 token at 2", "r3: 1 token at 2"]


def test_a_token_too_many_is_not_taken(cluster: Cluster) -> None:
    cluster.arrives("r1", max_tokens=2)
    cluster.steps("B", "r1")
    cluster.steps("B", "r1")
    assert cluster.steps("B", "r1") == ["r1: length", "B: stop r1"]
    assert cluster.delivered["r1"] == [100, 101]


def test_two_tokens_of_a_request_in_a_report_are_no_pattern_for_the_next(cluster: Cluster) -> None:
    cluster.arrives("r1")
    cluster.steps("B", "r1 r1")
    counter = cluster.assignments["r1"].counter
    assert cluster.reports("B", [(counter, 1), (counter, 2)])[0] == "r1: 1 token at 2"


def test_a_request_takes_its_share_of_each_step_it_was_in(cluster: Cluster) -> None:
    """A step takes 10 ms here."""
    cluster.arrives("r1")
    cluster.steps("B", "r1")
    cluster.arrives("r2")
    cluster.steps("B", "r1 r2")
    cluster.steps("B", "r1 r2")
    cluster.steps("B", "r1 r2", finished="r1")
    assert ending(cluster).gpu_s == pytest.approx(0.01 + 3 * 0.005)
    cluster.gpu_is_lost("B")
    cluster.steps("A", "r2", finished="r2")
    assert ending(cluster).gpu_s == pytest.approx(3 * 0.005 + 0.01)
