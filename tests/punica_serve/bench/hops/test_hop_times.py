import pytest

from punica_serve.bench.hops.hop_times import ClientTimes, by_trace, hop_times_s, is_whole
from punica_serve.bench.hops.hops_report import hops_report
from punica_serve.bench.hops.otlp_collector import ReceivedSpan

MS = 1_000_000


def span(
    trace_id: str, name: str, start_ms: int, end_ms: int, *events: tuple[str, int], **attributes: int
) -> ReceivedSpan:
    named: dict[str, str | int] = {f"punica.{key}": value for key, value in attributes.items()}
    return ReceivedSpan("", name, trace_id, "", "", start_ms * MS, end_ms * MS, named, events)


def spans(trace_id: str, sent_ms: int) -> list[ReceivedSpan]:
    """The spans of a request whose hops take 1, 2, 4, 8, 16, 32 and 64 ms, and whose last token comes 128 ms later."""
    at_ms = [sent_ms + offset for offset in (1, 3, 7, 15, 31, 63)]
    return [
        span(trace_id, "request", at_ms[0], sent_ms + 300, ("first token", at_ms[5] * MS)),
        span(trace_id, "queue", at_ms[1], at_ms[2]),
        span(trace_id, "assignment", at_ms[2], sent_ms + 170),
        span(trace_id, "prefill", at_ms[3], at_ms[4]),
        span(trace_id, "decode", at_ms[4], at_ms[4] + 128),
    ]


def test_the_hops_of_a_request_add_up_to_its_first_token() -> None:
    traces = by_trace(spans("a", 0) + spans("b", 400))
    requests = [ClientTimes("a", 0, 127 * MS, 300 * MS), ClientTimes("b", 400 * MS, 527 * MS, 700 * MS)]
    times = hop_times_s([requests], traces)
    assert [times[hop] for hop in list(times)[:7]] == [pytest.approx([ms / 1e3] * 2) for ms in (1, 2, 4, 8, 16, 32, 64)]
    assert times["to the first token"] == pytest.approx([0.127 - 0.016] * 2)
    # From 159 ms, the first request's last token, to 415, when the second one is at the worker.
    assert times["last token to client"] == pytest.approx([0.300 - 0.159])
    assert times["client"] == pytest.approx([0.1])
    assert times["a freed place"] == pytest.approx([0.415 - 0.159])


def test_the_report_leaves_out_hops_without_times() -> None:
    times = hop_times_s([[ClientTimes("a", 0, 127 * MS, 300 * MS)]], by_trace(spans("a", 0)))
    (table,) = hops_report(times, {}, "one request").tables
    assert [record["hop"] for record in table.records] == list(times)[:8]
    assert table.records[0]["p50_ms"] == pytest.approx(1.0)


def test_launches_are_told_of_where_steps_overlap() -> None:
    traces = by_trace(spans("a", 0) + spans("b", 400))
    traces["b"]["prefill"] = span("b", "prefill", 415, 431, launch_lead_us=1500, launched_early_us=250)
    requests = [ClientTimes("a", 0, 127 * MS, 300 * MS), ClientTimes("b", 400 * MS, 527 * MS, 700 * MS)]
    times = hop_times_s([requests], traces)
    assert times["launch lead"] == pytest.approx([0.0015])
    assert times["launched early"] == pytest.approx([0.00025])


def test_the_launches_of_other_ranks_have_rows_of_their_own() -> None:
    traces = by_trace(spans("a", 0))
    early_us = {"launched_early_us": 250, "launched_early_us.rank_1": 230, "launched_early_us.rank_2": 0}
    traces["a"]["prefill"] = span("a", "prefill", 15, 31, **early_us)
    times = hop_times_s([[ClientTimes("a", 0, 127 * MS, 300 * MS)]], traces)
    assert times["launched early, rank 1"] == pytest.approx([0.00023])
    (table,) = hops_report(times, {}, "one request").tables
    own, *others = table.records[-3:]
    assert [record["hop"] for record in others] == ["launched early, rank 1", "launched early, rank 2"]
    assert all(record["includes"] == own["includes"] for record in others)


def test_a_trace_is_whole_when_all_spans_have_come() -> None:
    assert is_whole(by_trace(spans("a", 0))["a"])
    assert not is_whole(by_trace(spans("a", 0)[:-1])["a"])
