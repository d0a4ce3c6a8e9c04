"""CPU assistance on a rank that follows its leader, which says which steps get help.

Each rank's CPU processes compute its own share of what an adapter adds. A rank whose processes can't help just now
waits for its layers on the device instead: the leader asks for help only once all ranks have queued their copies.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Lock

import torch

from punica_serve.engine.adapters.host_cache import HostCache
from punica_serve.engine.batching.step_plan import StepPlan
from punica_serve.engine.cpu_assist.assist_job import AssistJob
from punica_serve.engine.cpu_assist.assistant import CpuAssist
from punica_serve.engine.ranks.rank_copies import RankCopies
from punica_serve.engine.ranks.rank_messages import Done
from punica_serve.errors import RequestFailed
from punica_serve.protocol import WireError


class RankAssist:
    """The jobs of one rank. All methods run on the thread that takes the leader's commands."""

    def __init__(
        self, assist: CpuAssist | None, host_cache: HostCache, copies: RankCopies, reply: Callable[[Done], None]
    ) -> None:
        """``reply`` may be called on any thread."""
        self._assist = assist
        self._host_cache = host_cache
        self._copies = copies
        self._reply = reply
        #: The command that asks for help with the next step, if there is one.
        self._number: int | None = None
        #: Held while a job begins or ends: both write to the shared memory.
        self._lock = Lock()
        self._ends = ThreadPoolExecutor(1, "assist-end")

    def expect(self, number: int) -> None:
        """The prefill of the next step gets help."""
        self._number = number

    def begin(self, plan: StepPlan) -> StepPlan:
        """The next step, with a job if it gets help and the processes can give it."""
        if self._number is None or self._assist is None:
            return plan
        digest = plan.prefills[0].digest
        assert digest is not None
        arrival, copy = self._copies.arrival(digest), self._host_cache.get(digest)
        if copy is None:
            return plan
        try:
            if arrival is None:
                return plan  # all of it is on the device
            with self._lock:
                job = self._assist.begin(plan.num_prefill_tokens, copy, arrival, self._host_cache)
            return replace(plan, assist=job)
        finally:
            self._host_cache.release(copy)

    def finish(self, plan: StepPlan, end: torch.cuda.Event | None) -> None:
        """The step was launched, and ends with the event. The leader is told then whether its prefill counts."""
        if self._number is None:
            return
        number, self._number = self._number, None
        if plan.assist is None:
            self._reply(Done(number))
        elif end is None:
            self._end(number, plan.assist)
        else:
            self._ends.submit(self._end_after, end, number, plan.assist)

    def close(self) -> None:
        """Ends the processes. All steps must have ended."""
        self._ends.shutdown()
        if self._assist is not None:
            self._assist.close()

    def _end_after(self, end: torch.cuda.Event, number: int, job: AssistJob) -> None:
        end.synchronize()
        self._end(number, job)

    def _end(self, number: int, job: AssistJob) -> None:
        with self._lock:
            is_good = job.end()
        error = None if is_good else WireError.of(RequestFailed("a step has waited for its CPU processes in vain"))
        self._reply(Done(number, error))
