from dataclasses import replace

import pytest

from punica_serve.bench.serving.served_times import ServedTimes, ServiceLevel, beside_long_prompts, result_of
from punica_serve.bench.serving.serving_report import make_report
from punica_serve.bench.serving.serving_run import ServingRow
from punica_serve.bench.serving.serving_settings import ServingSettings

SETTINGS = ServingSettings(("ours",), ("base",), ("http",), (2,), 8, ServiceLevel(0.5, 0.05))


def test_the_report_tells_the_load_and_the_failures() -> None:
    times = [ServedTimes(0.0, [(0.1, 1), (0.2, 2)], 0.2), ServedTimes(0.0, [], 1.0, "HTTP 429: full")]
    report = make_report(
        [ServingRow("ours", "base", "http", result_of(times, SETTINGS.level), 40.0)], SETTINGS, "m", max_context=4096
    )
    (record,) = report.tables[0].records
    assert record["tokens_per_s"] == 10.0 and record["frontend_us_per_token"] == 40.0
    assert report.tables[0].notes[0].startswith("closed loop of 8 clients; rank 16")
    assert report.failures == ["ours, base, http: 1 of 2 requests failed, the first: HTTP 429: full"]
    assert make_report([], SETTINGS, "m", max_context=4096).tables[0].records == []
    there = make_report([], replace(SETTINGS, url="http://other:8000"), "m", max_context=4096).tables[0].notes[0]
    assert "rank" not in there and "the adapters 'dummy-{}' of http://other:8000" in there


def test_requests_that_the_context_does_not_hold_are_told() -> None:
    settings = replace(SETTINGS, workloads=("prompt_heavy", "answer_heavy"), num_requests=(2, 2))
    told = [make_report([], settings, "m", max_context=size).tables[0].notes[2:] for size in (4096, 2048)]
    cut = "prompt_heavy: requests are cut to the context of 2,048 tokens, prompts to 1,984 at most, answers to 64"
    assert told == [(), (cut,)]


def test_long_prompts_that_fail_are_failures() -> None:
    times = [ServedTimes(0.0, [(0.1, 1), (0.2, 2)], 0.2)]
    beside = beside_long_prompts(times, [ServedTimes(0.0, [], 0.1, "HTTP 400")])
    row = ServingRow("ours", "base", "http", result_of(times, SETTINGS.level), None, beside)
    report = make_report([row], replace(SETTINGS, long_prompt=30_000), "m", max_context=4096)
    assert report.failures == ["ours, base, http: a prompt of `--long-prompt` failed: HTTP 400"]


def test_times_beside_long_prompts_are_told_with_those_without() -> None:
    times = [ServedTimes(0.0, [(0.1, 1), (0.2, 2)], 0.2), ServedTimes(0.5, [(0.7, 1), (1.0, 2)], 1.0)]
    beside = beside_long_prompts(times, [ServedTimes(0.4, [(0.9, 1)], 0.9)])
    row = ServingRow("ours", "base", "http", result_of(times, SETTINGS.level), None, beside)
    record = make_report([row], replace(SETTINGS, long_prompt=30_000), "m", max_context=4096).tables[1].records[0]
    told = {name: value for name, value in record.items() if name.endswith("p50_ms")}
    assert told == {
        "long_first_token_p50_ms": pytest.approx(500),
        "first_token_beside_p50_ms": pytest.approx(200),
        "first_token_without_p50_ms": pytest.approx(100),
        "gap_beside_p50_ms": pytest.approx(300),
        "gap_without_p50_ms": pytest.approx(100),
    }
