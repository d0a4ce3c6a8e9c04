"""Runs steps on all ranks of a group: the others are told before the leader launches its own part."""

import time
from collections.abc import Sequence as Series

import torch

from punica_serve.engine.batching.step_plan import StepPlan
from punica_serve.engine.ranks.rank_group import RankGroup
from punica_serve.engine.ranks.rank_loss import ExchangeFailed
from punica_serve.engine.ranks.rank_messages import AssistStep
from punica_serve.engine.ranks.step_wait import StepWait
from punica_serve.engine.sampler import SampledToken
from punica_serve.engine.step_runner import LaunchedStep, StepRunner


class _GroupStep:
    """The leader's part of a step, whose end may be that of the group."""

    def __init__(self, own: LaunchedStep, wait: StepWait) -> None:
        self._own = own
        self._wait = wait
        self.phases_ns = own.phases_ns
        self.is_late = own.is_late

    @property
    def has_ended(self) -> bool:
        return self._own.has_ended

    def sampled_tokens(self) -> Series[SampledToken | None]:
        """See ``LaunchedStep.sampled_tokens``."""
        with self._wait.waiting():
            return self._own.sampled_tokens()


class GroupRunner:
    """The leader's runner, and the ranks that follow it."""

    def __init__(self, own: StepRunner, group: RankGroup) -> None:
        self._own = own
        self._group = group
        self.overlap_scheduling = own.overlap_scheduling

    @property
    def newest_end(self) -> torch.cuda.Event | None:
        return self._own.newest_end

    def close(self) -> None:
        """Ends the leader's graphs; nothing can be launched afterwards."""
        del self._own

    def launch(self, plan: StepPlan) -> LaunchedStep:
        """See ``StepRunner.launch``. Raises RankLost if a rank is gone."""
        if plan.assist is not None:
            plan.assist.peers = self._group.call(AssistStep)
        self._group.launches.begin()
        self._group.send_step(plan)
        sent_ns = time.monotonic_ns()
        try:
            with self._group.step_wait.waiting():
                launched = self._own.launch(plan)
        except (ExchangeFailed, RuntimeError) as error:  # an exchange whose peer is gone, on CPUs or in a graph
            raise self._group.loss_after(error) from error
        self._group.launches.add(sent_ns, sent_ns, *launched.phases_ns)
        return _GroupStep(launched, self._group.step_wait)
