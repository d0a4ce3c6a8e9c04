"""The other ranks of an engine's group, as their leader's engine sees them."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch

from punica_serve.engine.adapters.adapter_peers import NO_PEERS, AdapterPeers
from punica_serve.engine.adapters.lora_pool import AdapterPages
from punica_serve.engine.group_runner import GroupRunner
from punica_serve.engine.group_start import OTHERS_PHASE
from punica_serve.engine.launch_lead import LaunchMargin
from punica_serve.engine.ranks.group_adapters import GroupAdapters
from punica_serve.engine.ranks.launch_times import Phase
from punica_serve.engine.ranks.rank_group import RankGroup
from punica_serve.engine.ranks.rank_messages import SlowCopies
from punica_serve.engine.ranks.rank_process import FollowingRank
from punica_serve.engine.ranks.rendezvous import leave, leave_if_lost
from punica_serve.engine.step_runner import StepRunner
from punica_serve.process.start_clock import StartClock


class LedGroup:
    """Started with the engine, and ended with it. An engine alone leads nobody."""

    def __init__(self, device: torch.device, group: RankGroup | None = None) -> None:
        """``device``: the leader's own."""
        self._device = device
        self._group = group
        self._runner: GroupRunner | None = None
        #: Seconds of each rank's start, by phase, once all follow.
        self.phases: list[dict[str, float]] = []

    @property
    def ranks(self) -> tuple[FollowingRank, ...]:
        return tuple(self._group.ranks) if self._group is not None else ()

    @property
    def is_lost(self) -> bool:
        """Whether a rank is gone, so that nothing that was launched will end."""
        return self._group is not None and self._group.is_lost

    def smallest(self, name: str, value: int) -> int:
        """See ``RankGroup.smallest``."""
        return self._group.smallest(name, value) if self._group is not None else value

    def adapter_peers(self, on_progress: Callable[[], None]) -> AdapterPeers:
        """``on_progress`` is called on some thread when all ranks have copied an adapter, or queued its copies."""
        return GroupAdapters(self._group, on_progress) if self._group is not None else NO_PEERS

    def follow(self, runner: StepRunner, clock: StartClock) -> StepRunner:
        """The leader's runner, with the other ranks following its steps, once all of them can."""
        if self._group is None:
            return runner
        with clock.phase(OTHERS_PHASE):
            self.phases = self._group.await_ready()
        self._runner = GroupRunner(runner, self._group)
        return self._runner

    def slow_copies(self, factor: int) -> None:
        """Emulates a slower link, as ``Engine.slow_copies`` does."""
        if self._group is not None:
            self._group.send(SlowCopies(factor))

    def audit(self, adapters: dict[str, AdapterPages]) -> None:
        """See ``RankGroup.audit``."""
        if self._group is not None:
            self._group.audit(adapters)

    def launch_lags_us(self) -> Mapping[Phase, list[float]]:
        """See ``RankGroup.launch_lags_us``; none without a group."""
        return self._group.launch_lags_us() if self._group is not None else {}

    def with_ranks(self, margin: LaunchMargin | None) -> LaunchMargin | None:
        """The margin of the step that was launched last, with those of the ranks on this host."""
        if margin is None or self._group is None:
            return margin
        return replace(margin, ranks_early_s=self._group.launched_early_s(margin.early_s))

    def kill(self) -> None:
        """Ends the ranks by force, after a start that has failed."""
        if self._group is not None:
            self._group.kill()
            leave_if_lost(self._device)

    def close(self) -> None:
        """Ends graphs first, then the exchanges between ranks, which all ranks end together. May be called again."""
        group, self._group = self._group, None
        if group is None:
            return
        if self._runner is not None:
            self._runner.close()
        group.close()
        if group.is_lost:
            leave_if_lost(self._device)
        else:
            leave()
        group.wait()
