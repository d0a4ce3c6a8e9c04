"""A cluster in simulated time: the real scheduler, simulated GPUs, and a heap of what happens next.

Requests, commands and reports travel for a while, and each GPU takes its commands between two steps, so that it runs
ahead of the scheduler as a real one does. There is no randomness here: the same arrivals give the same history.
"""

import heapq
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from punica_scheduler.core import events
from punica_scheduler.core.actions import Action, Deliver, Start, Stop
from punica_scheduler.core.scheduler import Scheduler
from punica_scheduler.simulator.recorder import Recorder
from punica_scheduler.simulator.simulated_prompts import SimulatedPrompts
from punica_scheduler.simulator.stream_audit import StreamAudit
from punica_serve.errors.invariants import require
from punica_serve.performance.cluster_model import ClusterModel
from punica_serve.protocol import (
    AdapterRef,
    AssignmentsFailed,
    GpuInfo,
    Request,
    RowHeaderEncoder,
    SamplingParams,
    Slo,
    StartRequest,
    StepReport,
    StopRequest,
)
from punica_serve.simulation.arrivals import Arrivals
from punica_serve.simulation.worker import Command, Report, SimulatedWorker

#: How often the scheduler's clock ticks, as the live server's does.
TICK_S = 0.2
#: The one frontend; it has all requests.
FRONTEND_ID = "simulated"
#: A cluster that has not ended its last requests by then never will.
_MAX_DRAIN_S = 3600.0

_Event = Callable[[], None]


@dataclass(slots=True, eq=False)
class _Gpu:
    """A simulated worker and the commands that wait for the end of its step."""

    worker: SimulatedWorker
    row_headers: RowHeaderEncoder = field(default_factory=RowHeaderEncoder)
    inbox: deque[Command] = field(default_factory=deque)
    is_stepping: bool = False


class SimulatedCluster:
    """``run`` is the whole life: all GPUs join, all requests come, at least one, and it ends when every stream has."""

    def __init__(
        self,
        scheduler: Scheduler,
        runners: Mapping[str, Sequence[GpuInfo]],
        model: ClusterModel,
        arrivals: Arrivals,
        adapters: Sequence[AdapterRef],
        slos: Sequence[Slo],
        prompts: SimulatedPrompts,
        *,
        vocab_size: int,
        link_latency_s: float,
        interval_s: float,
    ) -> None:
        self._scheduler = scheduler
        self._runners = runners
        infos = [info for infos in runners.values() for info in infos]
        self._gpus = {info.uuid: _Gpu(SimulatedWorker(info, *model, vocab_size=vocab_size)) for info in infos}
        self.arrivals = arrivals
        self._adapters = adapters
        self.slos = slos
        self._latency_s = link_latency_s
        self._interval_s = interval_s
        self.audit = StreamAudit([length.output for length in arrivals.lengths], vocab_size)
        self.recorder = Recorder(
            [info.uuid for info in infos],
            interval_s=interval_s,
            max_batch_size=max(info.max_batch_size for info in infos),
        )
        #: From arrival to the first placement, of each request that was placed.
        self.queue_delay_s: list[float | None] = [None] * len(arrivals)
        #: When the scheduler hears of each.
        self._arrived_s = [time_s + link_latency_s for time_s in arrivals.times_s]
        self.now_s = 0.0
        #: (when, number, what): equal times in the order in which they were planned.
        self._heap: list[tuple[float, int, _Event]] = []
        self._num_planned = 0
        self._prompts = prompts

    def run(self, on_progress: Callable[[float], None] = lambda _now_s: None) -> None:
        """Runs the simulation. Raises AssertionError if a stream was not delivered exactly once, or an audit fails: a
        bug of ours.
        """
        self._join()
        self._plan(0.0, self._tick)
        self._plan(0.0, partial(self._watch, on_progress))
        self._plan(self.arrivals.times_s[0], partial(self._arrive, 0))
        heap = self._heap
        while self.audit.num_ended < len(self.arrivals):
            self.now_s, _, event = heapq.heappop(heap)
            event()
        self.recorder.finish(self.now_s)
        self._check()

    def _check(self) -> None:
        self.audit.finish()
        self._scheduler.check_invariants()
        for gpu in self._gpus.values():
            gpu.worker.check_invariants()

    def _plan(self, time_s: float, event: _Event) -> None:
        self._num_planned += 1
        heapq.heappush(self._heap, (time_s, self._num_planned, event))

    def _handle(self, event: events.Event) -> None:
        """The scheduler hears of something, and what it says sets out."""
        for action in self._scheduler.handle(event, round(self.now_s * 1e9)):
            self._do(action)

    def _do(self, action: Action) -> None:
        match action:
            case Deliver(deliveries=deliveries):
                self.audit.take(deliveries, self.now_s + self._latency_s)
                self.recorder.delivered(self.now_s, len(deliveries.handles))
            case Start(gpu_uuid, seq, assignment, request):
                number = int(request.request_id)
                if self.queue_delay_s[number] is None:
                    self.queue_delay_s[number] = self.now_s - self._arrived_s[number]
                self._command(gpu_uuid, StartRequest(gpu_uuid, seq, assignment, request))
            case Stop(gpu_uuid, seq, assignment):
                self._command(gpu_uuid, StopRequest(gpu_uuid, seq, assignment))
            case _:
                pass  # for people and processes that are not here, or a hint: host memory fills in no time here

    def _command(self, gpu_uuid: str, command: Command) -> None:
        self._plan(self.now_s + self._latency_s, partial(self._commanded, self._gpus[gpu_uuid], command))

    # -------------------------------------------------------------- what happens

    def _join(self) -> None:
        self._handle(events.FrontendJoined(FRONTEND_ID))
        for runner_id, infos in self._runners.items():
            self._handle(events.RunnerJoined(runner_id))
            for info in infos:
                self._handle(events.GpuJoined(runner_id, info))

    def _tick(self) -> None:
        require(self.now_s <= self.arrivals.times_s[-1] + _MAX_DRAIN_S, "some requests never end")
        self._handle(events.Tick())
        self._plan(self.now_s + TICK_S, self._tick)

    def _watch(self, on_progress: Callable[[float], None]) -> None:
        """Once in an interval."""
        self.recorder.queued(self.now_s, self._scheduler.snapshot(round(self.now_s * 1e9)).queue_length)
        on_progress(self.now_s)
        self._plan(self.now_s + self._interval_s, partial(self._watch, on_progress))

    def _arrive(self, number: int) -> None:
        """Sends a request, and plans the next."""
        self.recorder.arrived(self.now_s)
        event = events.RequestArrived(FRONTEND_ID, number, self._request(number))
        self._plan(self._arrived_s[number], partial(self._handle, event))
        if number + 1 < len(self.arrivals):
            self._plan(self.arrivals.times_s[number + 1], partial(self._arrive, number + 1))

    def _request(self, number: int) -> Request:
        length = self.arrivals.lengths[number]
        params = SamplingParams(max_tokens=length.output, ignore_eos=True, seed=number)
        index = self.arrivals.adapters[number] if self.arrivals.adapters else None
        adapter = None if index is None else self._adapters[index]
        prompt = self._prompts.of(number, length.prompt, index)
        return Request(str(number), round(self.now_s * 1e9), prompt, params, adapter, slo=self.slos[number])

    def _commanded(self, gpu: _Gpu, command: Command) -> None:
        gpu.inbox.append(command)
        if not gpu.is_stepping:
            self._turn(gpu)

    def _step_ended(self, gpu: _Gpu) -> None:
        report = gpu.worker.end_step()
        self.recorder.stepped(report.gpu_uuid, self.now_s, report.duration_s, report.batch_size)
        self._report(gpu, report)
        gpu.is_stepping = False
        self._turn(gpu)

    def _wake(self, gpu: _Gpu) -> None:
        if not gpu.is_stepping:
            self._turn(gpu)

    def _turn(self, gpu: _Gpu) -> None:
        """Applies commands between two steps, and begins the next step."""
        worker = gpu.worker
        if gpu.inbox:
            for report in worker.apply(gpu.inbox, self.now_s):
                self._report(gpu, report)
            gpu.inbox.clear()
        duration_s = worker.begin_step(self.now_s)
        if duration_s is not None:
            gpu.is_stepping = True
            self.recorder.began(worker.gpu_uuid, self.now_s)
            self._plan(self.now_s + duration_s, partial(self._step_ended, gpu))
            return
        self.recorder.idled(worker.gpu_uuid, self.now_s)
        for report in worker.idle():
            self._report(gpu, report)
        if (wakes_at_s := worker.wakes_at_s) is not None:
            self._plan(wakes_at_s, partial(self._wake, gpu))

    def _report(self, gpu: _Gpu, report: Report) -> None:
        if isinstance(report, StepReport):
            report = gpu.row_headers.encode(report)
        self._plan(self.now_s + self._latency_s, partial(self._reported, report))

    def _reported(self, report: Report) -> None:
        match report:
            case StepReport():
                self._handle(events.StepFinished(report))
            case AssignmentsFailed():
                self._handle(events.AssignmentsFailed(report))
