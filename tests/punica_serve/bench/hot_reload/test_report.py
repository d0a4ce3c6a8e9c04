from dataclasses import replace

from punica_serve.bench.hot_reload.footprint import Footprint
from punica_serve.bench.hot_reload.load import JudgedAnswer
from punica_serve.bench.hot_reload.reloads import Reload
from punica_serve.bench.hot_reload.report import MAX_GROWTH_BYTES, HotReloadMeasured, make_report
from punica_serve.bench.hot_reload.versions import Verdict

SMALL = Footprint(0, {"worker": 1 << 20}, {"worker": 1.0}, num_on_gpu=2, num_stored=2, num_downloaded=0)
GOOD = HotReloadMeasured(
    answers=[
        JudgedAnswer(name, t, t + 0.01, t + 0.5, Verdict.WHOLE) for t in (1.0, 2.0) for name in ("changing", "roman")
    ],
    wrong=[],
    reloads=[Reload(0.0, 0.1), Reload(1.0, 1.2), Reload(2.0, 2.2)],
    footprints=[SMALL, replace(SMALL, num_reloads=1, num_on_gpu=4), replace(SMALL, num_reloads=2), SMALL],
    seconds=4.0,
)


def test_what_is_as_promised() -> None:
    report = make_report(GOOD, {}, rate_per_s=1.0)
    answers, load, footprint = (table.records for table in report.tables)
    assert [(row["adapter"], row["requests"], row["whole"]) for row in answers] == [("changing", 2, 2), ("roman", 2, 2)]
    assert answers[0]["p50_ms"] == 500.0
    assert (load[0]["sent_per_s"], load[0]["reloads"], load[0]["reloads_per_s"]) == (1.0, 2, 0.5)
    assert report.tables[1].notes == ("The clock was kept: 1 requests/s.",)
    assert footprint[0]["what"] == "worker" and footprint[0]["grown"] == 0.0
    assert not report.failures


def test_what_is_not() -> None:
    last = replace(SMALL, resident_bytes={"worker": (2 << 20) + MAX_GROWTH_BYTES}, num_stored=3)
    late = [replace(answer, sent_s=answer.due_s + 1.0) for answer in GOOD.answers]
    bad = replace(GOOD, answers=late, wrong=["roman: mixed"], footprints=[SMALL, SMALL, SMALL, last])
    report = make_report(bad, {}, rate_per_s=9.0)
    assert report.failures == ["roman: mixed", "worker grew by 7.0 MiB", "3 adapters are left somewhere, of 2"]
    assert report.tables[1].notes == ("The clock was not kept: this machine can't sustain 9 requests/s.",)


def test_memory_that_swings_has_not_grown() -> None:
    """The lowest of the warm footprints, and of the last ones, count: memory between them goes back to the system."""
    swing = [replace(SMALL, resident_bytes={"worker": (1 + swing) << 20}) for swing in (0, 4, 8) * 10]
    assert not make_report(replace(GOOD, footprints=swing), {}, rate_per_s=1.0).failures
    grown = [
        replace(each, resident_bytes={"worker": each.resident_bytes["worker"] + n * MAX_GROWTH_BYTES // 10})
        for n, each in enumerate(swing)
    ]
    assert len(make_report(replace(GOOD, footprints=grown), {}, rate_per_s=1.0).failures) == 1
