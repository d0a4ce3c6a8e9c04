"""A scheduler's core with workers that obey late and report late, and frontends that believe nothing."""

import dataclasses
from collections.abc import Callable, Mapping

from msgspec.structs import replace

from client_stream import ClientStream
from late_worker import Worker
from punica_scheduler.core import events
from punica_scheduler.core.actions import Action, CallAnswered, Deliver, Start, Stop
from punica_scheduler.core.scheduler import Scheduler
from punica_scheduler.core.settings import SchedulerSettings
from punica_serve.protocol import Deliveries, GpuInfo, Request, TenantQuota

#: Called after each event with its actions, once all have their effects.
Observer = Callable[[events.Event, list[Action]], None]


class LateCluster:
    """Does what it is told to, by a clock that counts events; nothing in here is random."""

    def __init__(self, settings: SchedulerSettings, quotas: Mapping[str, TenantQuota], observe: Observer) -> None:
        self._settings = settings
        self._quotas = quotas
        self._observe = observe
        self.now_ns = 1
        self.incarnation = self.now_ns
        self.scheduler = Scheduler(self.incarnation, settings)
        self.workers: dict[str, Worker] = {}
        #: GPU UUID -> its runner.
        self.runners: dict[str, str] = {}
        #: By request id.
        self.streams: dict[str, ClientStream] = {}
        self.drained_uuids: set[str] = set()
        self.drained_runners: set[str] = set()
        self._num_answers = 0

    @property
    def live(self) -> list[ClientStream]:
        """Requests that have not ended."""
        return [stream for stream in self.streams.values() if stream.end is None]

    def is_draining(self, uuid: str) -> bool:
        return uuid in self.drained_uuids or self.runners[uuid] in self.drained_runners

    def tell(self, event: events.Event) -> None:
        self.now_ns += 1
        actions = self.scheduler.handle(event, self.now_ns)
        for action in actions:
            match action:
                case Start(gpu_uuid=uuid, request=request):
                    self.workers[uuid].commands.append(action)
                    self.streams[request.request_id].has_run = True
                case Stop(gpu_uuid=uuid):
                    self.workers[uuid].commands.append(action)
                case Deliver(frontend_id, deliveries):
                    self._deliver(frontend_id, deliveries)
                case CallAnswered(_, call_id, error):
                    assert (call_id, error) == (self._num_answers, None)
                    self._num_answers += 1
        self._observe(event, actions)

    def _deliver(self, frontend_id: str, deliveries: Deliveries) -> None:
        by_handle = {stream.handle: stream for stream in self.streams.values() if stream.frontend_id == frontend_id}
        for handle, position, token_id in zip(
            deliveries.handles, deliveries.positions, deliveries.token_ids, strict=True
        ):
            by_handle[handle].take(deliveries.offset + position, token_id)
        for ending in deliveries.endings:
            by_handle[ending.handle].take_end(ending)

    # -------------------------------------------------------------- frontends

    def arrives(self, frontend_id: str, request: Request) -> None:
        stream = ClientStream(frontend_id, len(self.streams), request)
        self.streams[request.request_id] = stream
        quota = self._quotas.get(request.tenant_id or "")
        self.tell(events.RequestArrived(frontend_id, stream.handle, request, quota))

    def add_again(self, streams: list[ClientStream]) -> None:
        """Their frontend has a new link."""
        for stream in streams:
            again = replace(stream.request, generated_ids=tuple(stream.tokens))
            quota = self._quotas.get(again.tenant_id or "")
            self.tell(events.RequestArrived(stream.frontend_id, stream.handle, again, quota, is_new=False))

    def live_of(self, frontend_id: str) -> list[ClientStream]:
        return [stream for stream in self.live if stream.frontend_id == frontend_id]

    # -------------------------------------------------------------- runners and GPUs

    def join(self, runner_id: str, info: GpuInfo) -> None:
        self.workers[info.uuid] = Worker(info, self.incarnation)
        self.runners[info.uuid] = runner_id
        self.tell(events.GpuJoined(runner_id, info))

    def lose_gpu(self, uuid: str) -> None:
        """Its worker dies."""
        for sequence in self.workers.pop(uuid).sequences.values():
            self.streams[sequence.request.request_id].num_losses += 1
        self.tell(events.GpuLost(uuid))

    def lose_runner(self, runner_id: str, event: events.RunnerLost | events.RunnerJoined) -> list[GpuInfo]:
        """As the event tells; returns its GPUs, which are gone."""
        infos = [worker.info for uuid, worker in self.workers.items() if self.runners[uuid] == runner_id]
        for info in infos:
            del self.workers[info.uuid]
        self.drained_runners.discard(runner_id)
        self.tell(event)
        return infos

    def drain_runner(self, runner_id: str) -> None:
        self.drained_runners.add(runner_id)
        self.tell(events.RunnerDrainRequested(runner_id))

    def drain_gpu(self, uuid: str, *, drain: bool) -> None:
        if drain:
            self.drained_uuids.add(uuid)
        else:
            self.drained_uuids.discard(uuid)
        num_before = self._num_answers
        self.tell(events.GpuDrainRequested("f", num_before, uuid, drain))
        assert self._num_answers == num_before + 1

    # -------------------------------------------------------------- all

    def restart_scheduler(self, settle_ns: int) -> list[GpuInfo]:
        """Workers are reset and drains forgotten; returns the GPUs, which have not come back yet."""
        self.now_ns += 1
        self.incarnation = self.now_ns
        self.scheduler = Scheduler(self.incarnation, dataclasses.replace(self._settings, settle_ns=settle_ns))
        self.drained_uuids, self.drained_runners = set(), set()
        infos, self.workers = [worker.info for worker in self.workers.values()], {}
        return infos

    def go_well(self) -> None:
        """Each worker obeys all its commands and takes a step, and all reports arrive."""
        for worker in self.workers.values():
            worker.step(max_commands=100)
            while worker.reports:
                self.tell(worker.reports.popleft())
        self.tell(events.Tick())
        self.scheduler.check_invariants()

    def end_drains(self) -> None:
        """Runners that are drained leave, and all other GPUs take requests again."""
        for runner_id in sorted(self.drained_runners):
            self.lose_runner(runner_id, events.RunnerLost(runner_id))
        for uuid in sorted(self.drained_uuids):
            self.drain_gpu(uuid, drain=False)

    def finish_all(self) -> None:
        """Nothing goes wrong any more: every request ends."""
        num_rounds = 0
        while self.live or any(worker.commands or worker.reports for worker in self.workers.values()):
            num_rounds += 1
            assert num_rounds < 50 * (len(self.streams) + 1), "requests go round in circles"
            self.go_well()
