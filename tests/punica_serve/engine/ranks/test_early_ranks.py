"""Ranks that are started before they know what they serve."""

import os
import signal
from pathlib import Path

import pytest

from process_tree import is_alive
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.engine import Engine
from punica_serve.engine.ranks.early_ranks import EarlyRanks, start_early
from punica_serve.engine.ranks.group_settings import GroupSettings
from punica_serve.engine.ranks.rank_loss import RankLost
from punica_serve.engine.ranks.rank_processes import RankProcesses


def test_only_groups_that_may_be_served_have_other_ranks() -> None:
    for device in ("cpu", "cuda:0", "simulated", "cuda:0,cuda:0", "cpu,cuda:0"):
        assert start_early(device) is None


def test_ranks_of_this_host_are_started_and_leave_nothing_behind() -> None:
    early = start_early("cpu,cpu,1/cpu,1/cpu")
    assert early is not None
    try:
        assert [(rank.name, device) for rank, device in early.ranks] == [("rank 1 (cpu)", "cpu")]
        assert early.num_other_hosts == 1
        rank = early.ranks[0][0]
        os.kill(rank.pid, signal.SIGINT)  # as Ctrl-C in a terminal does, while it still starts
        assert rank.end_reason() == "it has closed its link"  # so it has not ended
    finally:
        early.end()
    assert not is_alive(rank.pid) and rank.end_reason() == "killed by SIGKILL"


def test_a_rank_that_died_before_it_was_told_what_to_serve_ends_the_start(tiny_llama: Path) -> None:
    config, devices = EngineConfig(model=tiny_llama, cpu_threads=1), ("cpu", "cpu")
    early = EarlyRanks(devices)
    early.ranks[0][0].kill()
    others = RankProcesses(config, devices, GroupSettings(), early=early)
    with pytest.raises(RankLost, match=r"rank 1 \(cpu\) .*SIGKILL"):
        Engine(config, ",".join(devices), others=others)
