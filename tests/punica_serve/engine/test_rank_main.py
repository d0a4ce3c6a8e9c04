"""The process of a rank, from its command line to its end."""

import multiprocessing
from pathlib import Path

import pytest

from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.ranks.group_settings import GroupSettings
from punica_serve.engine.ranks.rank_child import RankChild
from punica_serve.engine.ranks.rank_link import RankLink
from punica_serve.engine.ranks.rank_messages import RankFailed, RankToLeader
from punica_serve.engine.ranks.rank_options import GroupOptions
from punica_serve.engine.ranks.rank_ring import RankRing

_DEADLINE_S = 60.0


@pytest.mark.slow
def test_a_rank_that_can_not_serve_says_why_to_its_leader_and_in_its_own_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The leader may log on another host."""
    ours, theirs = multiprocessing.Pipe()
    leader, ring = RankLink(ours, RankToLeader), RankRing(1)
    child = RankChild(ring.place(0), theirs.fileno())
    theirs.close()
    try:
        child.begin(GroupOptions(EngineConfig(model=tmp_path / "none"), GroupSettings(), None, 2).of(1, "cpu"))
        assert leader.await_message(_DEADLINE_S)
        failed = leader.receive()
        assert child.end_reason(_DEADLINE_S) == "exit code 2"
    finally:
        child.kill()
        child.stop(_DEADLINE_S)
        leader.close()
        ring.close()
    reason = f"model folder {tmp_path}/none does not exist"
    assert isinstance(failed, RankFailed) and reason in failed.error.message
    log = capfd.readouterr().err
    assert f"rank 1 ERROR this rank ends: {reason}" in log and "Traceback" not in log


def test_a_rank_that_is_never_told_what_to_serve_ends_by_itself() -> None:
    """Even while it imports torch."""
    ours, theirs = multiprocessing.Pipe()
    ring = RankRing(1)
    child = RankChild(ring.place(0), theirs.fileno())
    theirs.close()
    try:
        assert child.stop(_DEADLINE_S)
        assert child.end_reason() == "exit code 0"
    finally:
        child.kill()
        ours.close()
        ring.close()
