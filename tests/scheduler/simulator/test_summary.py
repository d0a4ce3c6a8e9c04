"""The paper's claims hold where they should, and fail where they should."""

from dataclasses import replace

from punica_scheduler.simulator.summary import checks
from summaries import GOOD


def test_a_cluster_as_in_the_paper_passes() -> None:
    assert [check.holds for check in checks(GOOD)] == [True, True, True]


def test_each_claim_can_fail_by_itself() -> None:
    assert [check.holds for check in checks(replace(GOOD, full_share=0.4))] == [False, True, True]
    assert [check.holds for check in checks(replace(GOOD, long_idle_share=0.1))] == [True, False, True]
    assert [check.holds for check in checks(replace(GOOD, evictions=0))] == [True, True, False]
