from typing import Any

from punica_serve.cli.top.state import MAX_KNOWN_GPUS, MAX_MARKS, State


def cluster(*marks: int, incarnation: int = 1, count: int = 1) -> dict[str, Any]:
    told = [{"number": number, "count": count} for number in marks]
    return {"type": "cluster", "cluster": {"incarnation": incarnation, "now_ns": 0, "gpus": [], "marks": told}}


def with_gpus(*uuids: str, now_s: int = 0) -> dict[str, Any]:
    gpus = [
        {"gpu": {"uuid": uuid, "name": f"name of {uuid}", "max_batch_size": 8}, "batch_size_mean": 1.0}
        for uuid in uuids
    ]
    now_ns = now_s * 1_000_000_000
    return {"type": "cluster", "cluster": {"incarnation": 1, "now_ns": now_ns, "gpus": gpus, "marks": []}}


def test_events_add_up_and_the_newest_version_of_one_counts() -> None:
    state = State()
    assert state.take(cluster(1, 2))
    assert state.take(cluster(2, 3, count=5))
    assert [(number, mark["count"]) for number, mark in state.marks.items()] == [(1, 1), (2, 5), (3, 5)]


def test_another_incarnation_counts_its_events_anew() -> None:
    state = State()
    state.take(cluster(1, 2, 3))
    state.take(cluster(1, incarnation=2))
    assert list(state.marks) == [1]


def test_no_more_events_are_kept_than_fit_a_terminal() -> None:
    state = State()
    state.take(cluster(*range(1, MAX_MARKS + 11)))
    assert (len(state.marks), next(iter(state.marks))) == (MAX_MARKS, 11)


def test_trouble_stays_until_the_cluster_is_told_of_again() -> None:
    state = State()
    state.take(cluster())
    assert state.take({"type": "unavailable", "error": {"message": "gone"}})
    assert state.trouble == "gone" and state.cluster is not None
    assert not state.take({"type": "history", "history": {"at_ns": [], "gpus": {}}})
    state.take(cluster())
    assert state.trouble is None


def test_a_gpu_that_left_keeps_its_name() -> None:
    state = State()
    state.take(with_gpus("a", "b"))
    state.take(with_gpus("b"))
    assert (state.name_of("a"), state.name_of("never seen")) == ("name of a", "never seen")


def test_the_gpus_seen_last_are_remembered() -> None:
    state = State()
    state.take(with_gpus("old"))
    for first in range(0, MAX_KNOWN_GPUS, 1024):
        state.take(with_gpus(*(f"gpu-{first + number}" for number in range(1024))))
    assert len(state.known) == MAX_KNOWN_GPUS and "old" not in state.known


def test_seconds_without_an_answer_stay_empty() -> None:
    state = State()
    state.take(with_gpus("a", now_s=1))
    state.take({"type": "unavailable", "error": {"message": "gone"}})
    state.take(with_gpus("a", now_s=3))
    assert [dict(column.batch_sizes) for column in state.columns.newest(9)] == [{"a": 1.0}, {}, {"a": 1.0}]
