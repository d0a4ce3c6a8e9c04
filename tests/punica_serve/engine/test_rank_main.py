"""The process of a rank, from its command line to its end."""

import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.ranks.group_settings import GroupSettings
from punica_serve.engine.ranks.rank_child import RankChild
from punica_serve.engine.ranks.rank_link import RankLink
from punica_serve.engine.ranks.rank_messages import RankFailed, RankToLeader
from punica_serve.engine.ranks.rank_options import GroupOptions
from punica_serve.engine.ranks.rank_ring import RankRing
from punica_serve.protocol import encode

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


@pytest.mark.slow
def test_a_rank_that_dies_of_a_fault_leaves_its_stacks_in_the_log(
    tiny_llama: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ours, theirs = multiprocessing.Pipe()
    leader, ring = RankLink(ours, RankToLeader), RankRing(1)
    child = RankChild(ring.place(0), theirs.fileno())
    theirs.close()
    try:
        child.begin(GroupOptions(EngineConfig(model=tiny_llama), GroupSettings(), None, 2).of(1, "cpu"))
        assert leader.await_message(_DEADLINE_S)
        os.kill(child.pid, signal.SIGSEGV)
        assert child.end_reason(_DEADLINE_S) == "killed by SIGSEGV"
    finally:
        child.kill()
        child.stop(_DEADLINE_S)
        leader.close()
        ring.close()
    log = capfd.readouterr().err
    assert "Fatal Python error: Segmentation fault" in log and "rank_main.py" in log and "in _serve" in log


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


#: A rank whose exchange fails as soon as it serves.
_FAILING_RANK = """
import sys

from punica_serve.engine import rank_main
from punica_serve.engine.ranks.rank_loss import ExchangeFailed

rank_main._BLAME_GRACE_S = float(sys.argv.pop(1))

def fail(*_):
    print("fails", flush=True)
    raise ExchangeFailed("an exchange with the other ranks has failed: Connection reset by peer")

rank_main._serve = fail
rank_main.main()
"""


def _start_failing(tmp_path: Path, blame_grace_s: float) -> tuple[subprocess.Popen[bytes], RankLink]:
    ours, theirs = multiprocessing.Pipe()
    words = ["--ring-fd=0", "--bell-fd=0", "--reader=0", "--num-readers=1", f"--link-fd={theirs.fileno()}"]
    child = subprocess.Popen(
        [sys.executable, "-c", _FAILING_RANK, f"{blame_grace_s}", *words],
        pass_fds=(theirs.fileno(),),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    theirs.close()
    assert child.stdin is not None and child.stdout is not None
    settings = GroupSettings(silence_timeout_s=10 * _DEADLINE_S)
    options = GroupOptions(EngineConfig(model=tmp_path), settings, None, 2).of(1, "cpu")
    with child.stdin as pipe:
        pipe.write(encode(options))
    assert child.stdout.readline() == b"fails\n"
    return child, RankLink(ours, RankToLeader)


def _log_of(ending: subprocess.Popen[bytes]) -> bytes:
    """All of it: a few lines, for which a pipe has room."""
    assert ending.stderr is not None
    ending.wait(_DEADLINE_S)
    return ending.stderr.read()


def test_a_rank_whose_leader_dies_blames_nobody_though_the_exchange_ends_before_the_link(tmp_path: Path) -> None:
    """A process's sockets end one after another, on a busy machine far apart."""
    child, leader = _start_failing(tmp_path, _DEADLINE_S)
    with child:
        assert not leader.await_message(0.3)
        leader.close()
        log = _log_of(child)
    assert (child.returncode, log) == (0, b"")


def test_a_rank_whose_exchange_fails_while_its_leader_lives_says_so_without_a_traceback(tmp_path: Path) -> None:
    child, leader = _start_failing(tmp_path, 0.1)
    with child:
        assert leader.await_message(_DEADLINE_S)
        failed = leader.receive()
        log = _log_of(child)
    leader.close()
    assert isinstance(failed, RankFailed) and not failed.permanent
    assert failed.error.message == "an exchange with the other ranks has failed: Connection reset by peer"
    assert child.returncode == 1 and b"Traceback" not in log and failed.error.message.encode() in log
