"""A worker around a simulated GPU: commands of the protocol in, reports out.

It sends the same messages as a real worker's step loop (``punica_runner.step_loop``). Its driver keeps the time: the
simulator, or the runner's simulated worker, which waits for each step between ``begin_step`` and ``end_step``.
"""

from collections.abc import Iterable
from typing import assert_never

from punica_serve.base_model.lora_layout import pool_pages
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.config.engine_section import EngineConfig
from punica_serve.errors import ConfigError, InvalidRequest
from punica_serve.errors.invariants import require
from punica_serve.paging.kv_window import kv_window_of
from punica_serve.performance.step_time import StepTimeModel
from punica_serve.prefill_chunks import PrefillBudget
from punica_serve.protocol import (
    SIMULATED_DEVICE,
    AdaptersCached,
    AssignmentId,
    AssignmentsFailed,
    Forget,
    GpuInfo,
    PrefixCaching,
    Reset,
    StartRequest,
    StepReport,
    StopRequest,
    Warm,
    WireError,
)
from punica_serve.simulation.gpu import SimulatedGpu, SimulatedStep
from punica_serve.simulation.planned_step import PlannedStep
from punica_serve.worker_state.live_assignments import LiveAssignments
from punica_serve.worker_state.reported_adapters import ReportedAdapters

Command = StartRequest | StopRequest | Warm | Forget | Reset
Report = StepReport | AssignmentsFailed


_NOTHING = SimulatedStep(PlannedStep((), 0, 0, 0.0, ()), (), (), (), ())


def simulated_gpu_info(
    engine: EngineConfig, model: ModelConfig, uuid: str, name: str = "", *, batch_limit: str = "max_batch_size"
) -> GpuInfo:
    """A simulated GPU of the configured size. Raises ConfigError if no size is set."""
    if engine.num_kv_pages is None:
        message = "set `engine.num_kv_pages`: a simulated GPU has no memory to measure"
        raise ConfigError(message, param="engine.num_kv_pages")
    return GpuInfo(
        uuid=uuid,
        device=SIMULATED_DEVICE,
        max_batch_size=engine.max_batch_size,
        max_prefills=engine.num_prefills,
        batch_limit=batch_limit,
        page_size=engine.page_size,
        num_kv_pages=engine.num_kv_pages,
        num_lora_pages=pool_pages(engine.lora_pages, engine.lora_limits),
        name=name,
        device_name=SIMULATED_DEVICE,
        window=kv_window_of(engine, model),
        prefix_caching=PrefixCaching(SIMULATED_DEVICE, engine.prefix_scope) if engine.prefix_caching else None,
    )


class SimulatedWorker:
    """Call ``apply`` between steps; ``begin_step`` and, when its time has passed, ``end_step``."""

    def __init__(self, info: GpuInfo, model: StepTimeModel, prefill_budget: PrefillBudget, *, vocab_size: int) -> None:
        self._info = info
        self._gpu = SimulatedGpu(info, model, prefill_budget, vocab_size=vocab_size)
        self._epoch = 0
        self._applied_seq = 0
        self._incarnation = 0
        self._num_steps = 0
        #: Numbers of the newest step.
        self._batch_size = self._num_adapters = 0
        self._assignments = LiveAssignments()
        self._reported = ReportedAdapters(info.uuid)

    @property
    def gpu_uuid(self) -> str:
        return self._info.uuid

    @property
    def num_requests(self) -> int:
        """Live assignments."""
        return self._gpu.num_requests

    @property
    def wakes_at_s(self) -> float | None:
        """The time at which an adapter will be loaded, so that ``begin_step`` may find something to run without a new
        command.
        """
        return self._gpu.next_ready_s

    def apply(self, commands: Iterable[Command], now_s: float) -> list[Report]:
        """Applies commands between two steps; returns the reports to send before the next step."""
        reports: list[Report] = []
        has_news = False
        for command in commands:
            reports += self._apply(command, now_s)
            has_news |= not (isinstance(command, Warm) and command.host_only)
        return [*reports, self._report(_NOTHING)] if has_news else reports

    def begin_step(self, now_s: float) -> float | None:
        """Starts the next step; returns the seconds it takes, or None if nothing can run."""
        plan = self._gpu.begin_step(now_s)
        return None if plan is None else plan.duration_s

    def end_step(self) -> StepReport:
        """Ends the step that began, and reports its result."""
        step = self._gpu.end_step()
        self._num_steps += step.plan.batch_size > 0
        self._batch_size, self._num_adapters = step.plan.batch_size, step.plan.num_adapters
        for counter, _ in step.finished:
            self._assignments.stop(AssignmentId(self._incarnation, counter))
        return self._report(step)

    def idle(self) -> list[StepReport]:
        """Call it when nothing can run: reports once that the batch has ended, and newly resident adapters."""
        if not self._batch_size and self._reported.is_resident_known(self._gpu.resident):
            return []
        self._batch_size = self._num_adapters = 0
        return [self._report(_NOTHING)]

    def cached(self) -> list[AdaptersCached]:
        """Reports the adapters added to host memory, or evicted from it, since the last call."""
        return self._reported.in_host_memory(self._gpu.host)

    def check_invariants(self) -> None:
        """Audits the assignments and the GPU; an AssertionError is a bug of ours."""
        self._assignments.check_invariants()
        require(len(self._assignments) == self._gpu.num_requests, "an assignment is lost")
        self._gpu.check_invariants()

    def _apply(self, command: Command, now_s: float) -> list[Report]:
        match command:
            case StartRequest():
                self._applied_seq = command.seq
                return self._start(command, now_s)
            case StopRequest():
                self._applied_seq = command.seq
                self._stop(command.assignment)
            case Warm(host_only=True):
                self._gpu.prefetch_to_host(command.adapter)
            case Warm():
                self._gpu.prefetch(command.adapter, now_s, pin=command.pin)
            case Forget():
                self._gpu.evict(command.digest)
            case Reset():
                self._reset(command.epoch)
            case _:
                assert_never(command)
        return []

    def _start(self, command: StartRequest, now_s: float) -> list[Report]:
        request, assignment = command.request, command.assignment
        if (old := self._assignments.by_request.get(request.request_id)) is not None:
            self._stop(old)
        self._incarnation = assignment.incarnation
        try:
            self._gpu.add(assignment.counter, request, now_s)
        except InvalidRequest as error:
            return [self._failed(assignment, error)]
        self._assignments.start(request.request_id, assignment)
        return []

    def _stop(self, assignment: AssignmentId) -> None:
        if self._assignments.stop(assignment) is not None:
            self._gpu.cancel(assignment.counter)

    def _reset(self, epoch: int) -> None:
        for assignment in self._assignments:
            self._stop(assignment)
        self._epoch = epoch
        self._applied_seq = 0
        self._reported.reset()
        self._gpu.prefixes.hints.reset()

    def _failed(self, assignment: AssignmentId, error: InvalidRequest) -> AssignmentsFailed:
        return AssignmentsFailed(
            self._info.uuid, self._epoch, self._applied_seq, (assignment,), True, WireError.of(error)
        )

    def _report(self, step: SimulatedStep) -> StepReport:
        return StepReport(
            gpu_uuid=self._info.uuid,
            epoch=self._epoch,
            step=self._num_steps,
            applied_seq=self._applied_seq,
            incarnation=self._incarnation,
            assignments=step.keys,
            positions=step.positions,
            token_ids=step.token_ids,
            finished=step.finished,
            starved=step.plan.preempted,
            free_kv_pages=self._gpu.num_free_kv_pages,
            batch_size=self._batch_size,
            num_prefill_tokens=step.plan.num_prefill_tokens,
            num_adapters=self._num_adapters,
            duration_s=step.plan.duration_s,
            resident=self._reported.resident(self._gpu.resident),
            cached=step.cached,
            num_shared_kv_pages=self._gpu.num_shared_kv_pages,
            num_known_kv_pages=self._gpu.num_known_kv_pages,
            prefix_cache_queries=self._gpu.prefixes.num_queries,
            prefix_cache_hits=self._gpu.prefixes.num_hits,
            prefix_hints=self._gpu.prefixes.hints.take(),
        )
