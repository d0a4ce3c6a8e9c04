from typing import Any

from punica_serve.cli.top.state import MAX_MARKS, State


def cluster(*marks: int, incarnation: int = 1, count: int = 1) -> dict[str, Any]:
    told = [{"number": number, "count": count} for number in marks]
    return {"type": "cluster", "cluster": {"incarnation": incarnation, "marks": told}}


def test_marks_add_up_and_the_newest_telling_of_one_counts() -> None:
    state = State()
    assert state.take(cluster(1, 2))
    assert state.take(cluster(2, 3, count=5))
    assert [(number, mark["count"]) for number, mark in state.marks.items()] == [(1, 1), (2, 5), (3, 5)]


def test_another_incarnation_counts_its_marks_anew() -> None:
    state = State()
    state.take(cluster(1, 2, 3))
    state.take(cluster(1, incarnation=2))
    assert list(state.marks) == [1]


def test_no_more_marks_are_kept_than_fit_a_terminal() -> None:
    state = State()
    state.take(cluster(*range(1, MAX_MARKS + 11)))
    assert (len(state.marks), next(iter(state.marks))) == (MAX_MARKS, 11)


def test_trouble_stays_until_the_cluster_is_told_of_again() -> None:
    state = State()
    state.take(cluster())
    assert state.take({"type": "unavailable", "error": {"message": "gone"}})
    assert state.trouble == "gone" and state.cluster is not None
    assert not state.take({"type": "history", "history": {}})
    state.take(cluster())
    assert state.trouble is None
