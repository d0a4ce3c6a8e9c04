"""Starts prefills whose adapter is still on its way to the device, as `engine.cold_start` says."""

from dataclasses import replace

from punica_serve.base_model.lora_layout import LoraKind
from punica_serve.engine.adapters.copy_forecast import StepForecast
from punica_serve.engine.adapters.host_cache import HostCache, HostCopy
from punica_serve.engine.adapters.layer_arrival import Arrival, ArrivalFailed
from punica_serve.engine.adapters.loader import AdapterLoader
from punica_serve.engine.batching.sequence import Sequence
from punica_serve.engine.batching.step_plan import StepPlan
from punica_serve.engine.batching.step_planner import StepPlanner
from punica_serve.engine.cpu_assist.assistant import CpuAssist
from punica_serve.engine.in_flight import InFlight, launch
from punica_serve.engine.step_clock import StepClock
from punica_serve.engine.step_runner import StepRunner

#: The longest that a step's decodes may be held for layers of another request's adapter.
_MAX_HOLD_S = 0.0003


class ColdStarts:
    """A prefill may wait for its layers on the device, or let CPU processes compute what the missing ones add."""

    def __init__(
        self,
        planner: StepPlanner,
        loader: AdapterLoader,
        host_cache: HostCache,
        assist: CpuAssist | None,
        clock: StepClock,
    ) -> None:
        self._planner = planner
        self._clock = clock
        self._adapters = loader.adapters
        self._arrivals = loader.arrivals
        self._host_cache = host_cache
        self._assist = assist

    def can_start(self, sequence: Sequence) -> bool:
        """Whether the sequence's prefill could start now if nobody decoded."""
        return self._can_join(sequence) or self._source(sequence) is not None

    def may_start(self, sequence: Sequence, num_decodes: int, step: StepForecast) -> bool:
        """Whether it starts beside so many decodes. Without them it waits as long as it takes: it holds nobody else."""
        if num_decodes == 0:
            return self._can_join(sequence) or self._wants_help(sequence, step)
        if not self._can_join(sequence) or sequence.digest is None:
            return False
        hold_s = self._arrivals.join_hold_s(sequence.digest, step)
        return hold_s is not None and hold_s <= _MAX_HOLD_S

    def launch(self, planned: StepPlan, step: StepForecast, runner: StepRunner) -> InFlight | None:
        """Launches any step. None: what its prefill waits for has failed, so it did nothing and is planned anew."""
        plan = self._begin(planned, step)
        if plan is None:
            return None
        digests = {digest for chunk in plan.prefills if (digest := chunk.digest) is not None}
        try:
            launched = launch(plan, runner)
        except ArrivalFailed:
            if plan.assist is not None:
                plan.assist.end()
            for digest in digests:
                self._arrivals.stop_joining(digest)
            return None
        for digest in digests if plan.assist is None else ():
            self._arrivals.join(digest)
        return launched

    def _begin(self, plan: StepPlan, step: StepForecast) -> StepPlan | None:
        """The plan, just before its launch, with the job of CPU processes if they help. None: it can't start now."""
        sequence = plan.prefills[0].sequence if plan.prefills else None
        if sequence is None or sequence.digest is None or self._adapters.is_ready(sequence.digest):
            return plan
        source = self._source(sequence)
        if self._assist is not None and source is not None and not plan.decodes and self._wants_help(sequence, step):
            copy, arrival = source
            if job := self._assist.begin(plan.num_prefill_tokens, copy, arrival, self._host_cache):
                return replace(plan, assist=job, is_early=True)
        return replace(plan, is_early=True) if self._can_join(sequence) else None

    def _can_join(self, sequence: Sequence) -> bool:
        """Whether a step could wait for the layers of the sequence's adapter."""
        if sequence.is_decoding or sequence.is_unsure or sequence.digest is None:
            return False
        return self._arrivals.can_join(sequence.digest)

    def _wants_help(self, sequence: Sequence, step: StepForecast) -> bool:
        """Whether the mode asks for help that could be had."""
        if self._assist is None or (source := self._source(sequence)) is None:
            return False
        copy, arrival = source
        num_rows = self._planner.next_chunk_tokens(sequence)
        prefill = replace(step, lasts_s=self._clock.prefill_s(num_rows))
        return self._assist.is_worth_it(num_rows, copy, self._arrivals.arrives_in_s(arrival, prefill), prefill)

    def _source(self, sequence: Sequence) -> tuple[HostCopy, Arrival] | None:
        """The adapter of which CPU processes could compute layers, and its copy to the device; None if they can't."""
        if self._assist is None or sequence.is_decoding or sequence.is_unsure or sequence.digest is None:
            return None
        if sequence.invoked_at > sequence.num_cached:
            return None  # some of its next rows are the base model's
        if sequence.lora_kind is not LoraKind.USUAL or (source := self._arrivals.under_way(sequence.digest)) is None:
            return None
        num_rows = self._planner.next_chunk_tokens(sequence)
        return source if self._assist.may_help(num_rows, source[0]) else None
