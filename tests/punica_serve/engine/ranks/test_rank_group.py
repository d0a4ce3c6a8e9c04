"""A group whose ranks are in this process, as far as they start."""

import queue
from types import SimpleNamespace
from typing import Any

import pytest

from linked_rank import LinkedRank
from punica_serve.engine.ranks.group_settings import GroupSettings
from punica_serve.engine.ranks.rank_group import RankGroup
from punica_serve.engine.ranks.rank_loss import RankLost
from punica_serve.engine.ranks.rank_messages import RankPhase, RankReady
from waits import DEADLINE_S


def test_a_rank_that_is_never_ready_is_named_with_its_phase() -> None:
    ranks = [LinkedRank(index) for index in (1, 2, 3)]
    told: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
    processes: Any = SimpleNamespace(
        settings=GroupSettings(ready_timeout_s=0.2), ranks=ranks, why_late=lambda: "", end=lambda _: None
    )
    group = RankGroup(processes, on_phase=lambda rank, phase: told.put((rank, phase)))
    ranks[0].other.send(RankReady({"weights": 1.0}))
    for phase in ("joining", "weights"):
        ranks[1].other.send(RankPhase(phase))
        assert told.get(timeout=DEADLINE_S) == (2, phase)
    message = r"^rank 2 and rank 3 did not become ready within 0\.2 s \(rank 2 in 'weights'\)$"
    with pytest.raises(RankLost, match=message):
        group.await_ready()
    group.kill()
