from typing import Any

from punica_serve.cli.top.heat_columns import FILL_S, MAX_COLUMNS, HeatColumns

S = 1_000_000_000


def cluster(at_s: float, **batch_sizes: float) -> dict[str, Any]:
    gpus = [{"gpu": {"uuid": uuid}, "batch_size_mean": mean} for uuid, mean in batch_sizes.items()]
    return {"now_ns": int(at_s * S), "gpus": gpus}


def history(first_s: int, **batch_sizes: list[float | None]) -> dict[str, Any]:
    num_rows = max(map(len, batch_sizes.values()))
    gpus = {uuid: {"batch_size_mean": means} for uuid, means in batch_sizes.items()}
    return {"at_ns": [(first_s + row) * S for row in range(num_rows)], "gpus": gpus}


def told(columns: HeatColumns) -> dict[int, dict[str, float]]:
    known = columns.newest(MAX_COLUMNS)
    seconds = [column.at_s for column in known]
    assert seconds == list(range(seconds[0], seconds[0] + len(seconds)))
    return {column.at_s: dict(column.batch_sizes) for column in known}


def test_the_history_is_followed_by_a_column_for_each_second() -> None:
    columns = HeatColumns()
    columns.add_history(history(10, a=[1.0, 2.0], b=[None, 0.0]))
    columns.add_cluster(cluster(12.1, a=3.0))
    columns.add_cluster(cluster(12.9, a=4.0))
    columns.add_cluster(cluster(13.0, a=5.0))
    assert told(columns) == {10: {"a": 1.0}, 11: {"a": 2.0, "b": 0.0}, 12: {"a": 4.0}, 13: {"a": 5.0}}


def test_a_second_history_replaces_its_time_alone() -> None:
    columns = HeatColumns()
    columns.add_history(history(10, a=[1.0, 2.0, 3.0]))
    columns.add_history(history(11, a=[7.0, 8.0, 9.0]))
    assert told(columns) == {10: {"a": 1.0}, 11: {"a": 7.0}, 12: {"a": 8.0}, 13: {"a": 9.0}}


def test_a_rare_frame_stands_for_the_seconds_before_it() -> None:
    columns = HeatColumns()
    columns.add_cluster(cluster(0, a=1.0))
    columns.add_cluster(cluster(3, a=2.0))
    assert told(columns) == {0: {"a": 1.0}, 1: {"a": 2.0}, 2: {"a": 2.0}, 3: {"a": 2.0}}


def test_seconds_of_which_nothing_is_known_are_empty() -> None:
    columns = HeatColumns()
    columns.add_cluster(cluster(0, a=1.0))
    columns.add_cluster(cluster(FILL_S + 1, a=2.0))
    assert told(columns)[1] == {} and len(told(columns)) == FILL_S + 2
    columns.interrupt()
    columns.add_cluster(cluster(FILL_S + 3, a=3.0))
    columns.add_cluster(cluster(FILL_S + 5, a=4.0))
    assert list(told(columns).values())[-4:] == [{}, {"a": 3.0}, {"a": 4.0}, {"a": 4.0}]


def test_a_clock_that_is_set_back_drops_what_is_later() -> None:
    columns = HeatColumns()
    columns.add_history(history(10, a=[1.0, 2.0, 3.0]))
    columns.add_cluster(cluster(11, a=9.0))
    assert told(columns) == {10: {"a": 1.0}, 11: {"a": 9.0}}


def test_memory_is_bounded() -> None:
    columns = HeatColumns()
    columns.add_history(history(0, a=[1.0] * 600))
    columns.add_cluster(cluster(600, a=2.0))
    assert (len(told(columns)), min(told(columns))) == (MAX_COLUMNS, 601 - MAX_COLUMNS)
    columns.add_cluster(cluster(10_000_000, a=2.0))
    assert (len(told(columns)), min(told(columns))) == (MAX_COLUMNS, 10_000_001 - MAX_COLUMNS)


def test_the_newest_columns_are_the_last() -> None:
    columns = HeatColumns()
    columns.add_history(history(0, a=[1.0, 2.0, 3.0]))
    assert [column.at_s for column in columns.newest(2)] == [1, 2]
    assert columns.newest(0) == []
