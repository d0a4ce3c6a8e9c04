"""Events of runners and their GPUs: they join, are lost or drained, and their hosts' adapters change."""

from punica_scheduler.core.actions import CallAnswered
from punica_scheduler.core.cluster_state import ClusterState
from punica_scheduler.core.events import AdaptersCached, GpuDrainRequested
from punica_scheduler.core.limits_announcer import LimitsAnnouncer
from punica_scheduler.core.outcome import Outcome
from punica_scheduler.core.placer import Placer
from punica_serve.errors import PunicaError
from punica_serve.protocol import GpuInfo, WireError


class RunnerEvents:
    """One method for each event."""

    def __init__(self, state: ClusterState, limits: LimitsAnnouncer, placer: Placer) -> None:
        self._state = state
        self._fleet = state.fleet
        self._limits = limits
        self._placer = placer
        #: Ids of those that have joined.
        self.runners: set[str] = set()

    def joined(self, runner_id: str, outcome: Outcome) -> None:
        self.lost(runner_id, outcome)
        self.runners.add(runner_id)

    def lost(self, runner_id: str, outcome: Outcome) -> None:
        self.runners.discard(runner_id)
        self._state.adapters.lose_runner(runner_id)
        for gpu in self._fleet.of_runner(runner_id):
            if self._fleet.is_released(gpu):
                self._state.remove_drained_gpu(gpu, outcome)
            else:
                self._state.lose_gpu(gpu, outcome, is_death=False)
        self._fleet.forget_runner(runner_id)
        self._limits.update(outcome)

    def gpu_joined(self, runner_id: str, info: GpuInfo, outcome: Outcome) -> None:
        if gpu := self._fleet.gpus.get(info.uuid):
            self._state.lose_gpu(gpu, outcome, is_death=False)
        self._fleet.join(runner_id, info, outcome.now_ns)
        outcome.record_event("gpu_joined", info.uuid)
        self._limits.update(outcome)

    def gpu_lost(self, uuid: str, outcome: Outcome) -> None:
        if gpu := self._fleet.gpus.get(uuid):
            self._state.lose_gpu(gpu, outcome, is_death=True)
            self._limits.update(outcome)

    def drain_requested(self, runner_id: str, outcome: Outcome) -> None:
        self._fleet.drain_runner(runner_id)
        for gpu in self._fleet.of_runner(runner_id):
            outcome.record_event("gpu_drained", gpu.uuid)
        outcome.has_drained = True
        self._limits.update(outcome)
        self._placer.empty_draining(outcome)

    def gpu_drain_requested(self, event: GpuDrainRequested, outcome: Outcome) -> None:
        try:
            uuid = self._fleet.drain_gpu(event.gpu, event.drain)
        except PunicaError as error:
            outcome.actions.append(CallAnswered(event.frontend_id, event.call_id, WireError.of(error)))
            return
        outcome.record_event("gpu_drained" if event.drain else "gpu_taken_back", uuid)
        self._limits.update(outcome)
        outcome.actions.append(CallAnswered(event.frontend_id, event.call_id))
        self._placer.empty_draining(outcome)

    def adapters_cached(self, event: AdaptersCached, outcome: Outcome) -> None:
        change = event.change
        self._state.adapters.cached(event.runner_id, change.gpu_uuid, change.came, change.left)
        came = frozenset(change.came)  # a runner lists its whole disk when it dials
        self._state.waiting.retry_adapters(lambda record: record.digest in came, outcome.now_ns)
