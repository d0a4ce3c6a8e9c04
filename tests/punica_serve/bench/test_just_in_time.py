from pathlib import Path

import pytest
from rich.progress import Progress

from punica_serve.bench.just_in_time import Gaps, Interval, JustInTimeSettings, Upload, make_report, run
from punica_serve.errors import ClusterUnavailable

DEMO = Path(__file__).parents[3] / "configs" / "demo.yaml"


def test_gaps_are_within_a_stream_and_not_between_two() -> None:
    gaps = Gaps()
    gaps.frame("a", 1.0, is_last=False)
    gaps.frame("b", 1.5, is_last=False)
    gaps.frame("a", 3.0, is_last=True)
    gaps.frame("b", 3.5, is_last=False)
    assert gaps.spans == [Interval(1.0, 3.0), Interval(1.5, 3.5)]
    gaps.frame("a", 9.0, is_last=False)
    assert len(gaps.spans) == 2


def test_a_gap_that_an_upload_falls_into_is_beside_it() -> None:
    gaps = Gaps()
    gaps.spans = [Interval(0.0, 1.0), Interval(1.0, 3.0), Interval(2.4, 2.5), Interval(2.9, 4.5), Interval(4.0, 4.25)]
    assert gaps.divided([Upload(Interval(2.0, 3.0), answered_s=0.5)]) == ([1.0, 0.25], [2.0, pytest.approx(0.1), 1.6])


def test_the_report_compares_streams_with_themselves() -> None:
    uploads = [Upload(Interval(0.0, 0.5), 0.25), Upload(Interval(1.0, 2.5), 0.75)]
    report = make_report(uploads, [0.01] * 9 + [0.02], [0.02] * 9 + [0.06], {"num_streams": 2})
    (row,) = report.tables[0].records
    assert (row["upload_p50_s"], row["first_token_p50_s"], row["first_token_max_s"]) == (0.5, 1.0, 1.5)
    assert report.tables[0].notes[0].startswith("FAIL")
    between, beside, ratio = report.tables[1].records
    assert (between["frames"], between["max_ms"], beside["max_ms"]) == (10, 20.0, 60.0)
    assert ratio["p50_ms"] == pytest.approx(2.0) and ratio["max_ms"] == pytest.approx(3.0)


def test_without_a_cluster_it_says_how_to_start_one() -> None:
    settings = JustInTimeSettings("http://127.0.0.1:1", DEMO, 1, 1, 16, 0.1)
    with Progress() as progress, pytest.raises(ClusterUnavailable, match="start a cluster with `punica-serve up`"):
        run(settings, None, progress)
