import pytest

from punica_serve.bench.serving.served_times import ServedTimes, ServiceLevel, beside_long_prompts, result_of
from punica_serve.bench.serving.serving_goals import serving_goals
from punica_serve.bench.serving.serving_run import ServingRow

LEVEL = ServiceLevel(0.5, 0.05)


def times(first_s: float, end_s: float) -> list[ServedTimes]:
    return [ServedTimes(0.0, [(first_s, 1), (end_s, 9)], end_s)]


def test_each_api_is_compared_with_the_engine_of_the_same_load() -> None:
    rows = [
        ServingRow("ours", "base", "http", result_of(times(0.125, 1.0), LEVEL), 50.0),
        ServingRow("ours", "base", "websocket", result_of(times(0.101, 0.9), LEVEL), 30.0),
        ServingRow("ours", "distinct", "http", result_of(times(0.2, 1.0), LEVEL), 30.0),
        ServingRow("ours", "base", "engine", result_of(times(0.1, 0.9), LEVEL), None),
    ]
    (table,) = serving_goals(rows)
    assert [record["figure"] for record in table.records] == [
        "tokens/s, over the bare engine's, ours, base, http",
        "added to the first token, p50, ms, ours, base, http",
        "frontend CPU µs/token, ours, base, http",
        "tokens/s, over the bare engine's, ours, base, websocket",
        "added to the first token, p50, ms, ours, base, websocket",
        "frontend CPU µs/token, ours, distinct, http",
    ]
    assert [record["measured"] for record in table.records] == pytest.approx([0.9, 25.0, 50.0, 1.0, 1.0, 30.0])
    assert [record["met"] for record in table.records] == ["no", "no", "no", "yes", "yes", "yes"]


def test_tokens_beside_long_prompts_are_compared_with_those_without() -> None:
    load = [ServedTimes(0.0, [(0.1, 1), (0.2, 2), (0.5, 3)], 0.5)]
    beside = beside_long_prompts(load, [ServedTimes(0.3, [(0.4, 1)], 0.4)])
    row = ServingRow("ours", "base", "websocket", result_of(load, LEVEL), None, beside)
    (table,) = serving_goals([row])
    (record,) = table.records
    assert record["measured"] == pytest.approx(3.0) and record["met"] == "no"
    assert serving_goals([ServingRow("ours", "base", "http", result_of(load, LEVEL), None)]) == []
