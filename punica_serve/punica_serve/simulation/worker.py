"""A worker without a device: the wire's commands in, its reports out, around a simulated GPU.

It says what a real worker's step loop says (``punica_runner.step_loop``). Whoever drives it knows the time: the
simulator, or the runner's simulated worker, which waits out each step between ``begin_step`` and ``end_step``.
"""

from collections.abc import Iterable
from typing import assert_never

from punica_serve.config import EngineConfig
from punica_serve.errors import ConfigError, InvalidRequest
from punica_serve.lora_layout import LORA_GROUPS
from punica_serve.protocol import (
    AdaptersCached,
    AssignmentId,
    AssignmentsFailed,
    Forget,
    GpuInfo,
    Reset,
    StartRequest,
    StepReport,
    StopRequest,
    Warm,
    WireError,
)
from punica_serve.simulation.gpu import PlannedStep, SimulatedGpu, SimulatedStep
from punica_serve.simulation.step_time import StepTimeModel

Command = StartRequest | StopRequest | Warm | Forget | Reset
Report = StepReport | AssignmentsFailed

SIMULATED_DEVICE = "simulated"

_NOTHING = SimulatedStep(PlannedStep(None, 0, 0, 0, 0.0, ()), (), (), (), ())


def simulated_gpu_info(engine: EngineConfig, uuid: str) -> GpuInfo:
    """A simulated GPU of the size that the config gives. Raises ConfigError if it gives none."""
    if engine.num_kv_pages is None:
        message = "set `engine.num_kv_pages`: a simulated GPU has no memory to measure"
        raise ConfigError(message, param="engine.num_kv_pages")
    return GpuInfo(
        uuid=uuid,
        device=SIMULATED_DEVICE,
        max_batch_size=engine.max_batch_size,
        page_size=engine.page_size,
        num_kv_pages=engine.num_kv_pages,
        num_lora_pages=dict.fromkeys(LORA_GROUPS, engine.num_lora_pages),
    )


class SimulatedWorker:
    """``apply`` commands between steps; ``begin_step`` and, when its time has passed, ``end_step``."""

    def __init__(self, info: GpuInfo, model: StepTimeModel, *, prefill_budget_tokens: int, vocab_size: int) -> None:
        self._info = info
        self._gpu = SimulatedGpu(info, model, prefill_budget_tokens=prefill_budget_tokens, vocab_size=vocab_size)
        self._epoch = 0
        self._applied_seq = 0
        self._incarnation = 0
        self._num_steps = 0
        #: Of the newest step.
        self._batch_size = self._num_adapters = 0
        #: Request id -> counter of its assignment, and back.
        self._counters: dict[str, int] = {}
        self._request_ids: dict[int, str] = {}
        #: The adapters that the scheduler has been told of; None after a Reset: it may have forgotten.
        self._told_resident: tuple[str, ...] | None = ()
        #: The same of host memory: whether it knows all but the newest changes.
        self._has_told_cached = True

    @property
    def gpu_uuid(self) -> str:
        return self._info.uuid

    @property
    def num_requests(self) -> int:
        """Assignments that are here."""
        return self._gpu.num_requests

    @property
    def wakes_at_s(self) -> float | None:
        """When ``begin_step`` may find something to run though no command has come: an adapter will be there."""
        return self._gpu.next_ready_s

    def apply(self, commands: Iterable[Command], now_s: float) -> list[Report]:
        """Applies what has come between two steps; the reports to send before the next step."""
        told: list[Report] = []
        has_news = False
        for command in commands:
            told += self._apply(command, now_s)
            has_news = True
        return [*told, self._report(_NOTHING)] if has_news else told

    def begin_step(self, now_s: float) -> float | None:
        """Starts the next step; returns the seconds it takes, or None if nothing can run."""
        plan = self._gpu.begin_step(now_s)
        return None if plan is None else plan.duration_s

    def end_step(self) -> StepReport:
        """The step that began has run: what came of it."""
        step = self._gpu.end_step()
        self._num_steps += step.plan.batch_size > 0
        self._batch_size, self._num_adapters = step.plan.batch_size, step.plan.num_adapters
        for counter, _ in step.finished:
            del self._counters[self._request_ids.pop(counter)]
        return self._report(step)

    def idle(self) -> list[StepReport]:
        """Nothing can run: tells once that the batch has ended, and which adapters have come."""
        if not self._batch_size and self._gpu.resident == self._told_resident:
            return []
        self._batch_size = self._num_adapters = 0
        return [self._report(_NOTHING)]

    def cached(self) -> list[AdaptersCached]:
        """Which adapters have come to host memory, and left it, since the last call."""
        came, left = self._gpu.host.take_changes()
        if not self._has_told_cached:
            came, self._has_told_cached = self._gpu.host.digests, True
        return [AdaptersCached(self._info.uuid, came, left)] if came or left else []

    def check_invariants(self) -> None:
        """Audits the books; AssertionError is a bug of ours."""
        assert len(self._counters) == len(self._request_ids) == self._gpu.num_requests, "an assignment is lost"
        self._gpu.check_invariants()

    def _apply(self, command: Command, now_s: float) -> list[Report]:
        match command:
            case StartRequest():
                self._applied_seq = command.seq
                return self._start(command, now_s)
            case StopRequest():
                self._applied_seq = command.seq
                self._stop(command.assignment.counter)
            case Warm():
                self._gpu.warm(command.adapter, now_s, pin=command.pin)
            case Forget():
                self._gpu.forget(command.digest)
            case Reset():
                self._reset(command.epoch)
            case _:
                assert_never(command)
        return []

    def _start(self, command: StartRequest, now_s: float) -> list[Report]:
        request, assignment = command.request, command.assignment
        if (old := self._counters.get(request.request_id)) is not None:
            self._stop(old)
        self._incarnation = assignment.incarnation
        try:
            self._gpu.add(assignment.counter, request, now_s)
        except InvalidRequest as error:
            return [self._failed(assignment, error)]
        self._counters[request.request_id] = assignment.counter
        self._request_ids[assignment.counter] = request.request_id
        return []

    def _stop(self, counter: int) -> None:
        request_id = self._request_ids.pop(counter, None)
        if request_id is not None:
            del self._counters[request_id]
            self._gpu.cancel(counter)

    def _reset(self, epoch: int) -> None:
        for counter in tuple(self._request_ids):
            self._stop(counter)
        self._epoch = epoch
        self._applied_seq = 0
        self._told_resident = None
        self._has_told_cached = False

    def _failed(self, assignment: AssignmentId, error: InvalidRequest) -> AssignmentsFailed:
        return AssignmentsFailed(
            self._info.uuid, self._epoch, self._applied_seq, (assignment,), True, WireError.of(error)
        )

    def _report(self, step: SimulatedStep) -> StepReport:
        resident = self._gpu.resident
        told, self._told_resident = self._told_resident, resident
        return StepReport(
            gpu_uuid=self._info.uuid,
            epoch=self._epoch,
            step=self._num_steps,
            applied_seq=self._applied_seq,
            incarnation=self._incarnation,
            counters=step.keys,
            positions=step.positions,
            token_ids=step.token_ids,
            finished=step.finished,
            starved=step.plan.starved,
            free_kv_pages=self._gpu.num_free_kv_pages,
            batch_size=self._batch_size,
            num_prefill_tokens=step.plan.num_prefill_tokens,
            num_adapters=self._num_adapters,
            duration_s=step.plan.duration_s,
            resident=None if resident is told or resident == told else resident,
        )
