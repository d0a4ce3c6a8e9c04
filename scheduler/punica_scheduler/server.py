"""The scheduler on websockets: messages become events, actions become messages, and that is all.

Every event goes through ``Server.apply``, which decides and sends without waiting for anything. So the actions of one
event leave before those of the next, and each GPU gets its commands in the order of their numbers.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Never, assert_never

from punica_scheduler.core import actions, events
from punica_scheduler.core.actions import (
    Action,
    Advise,
    AnnounceLimits,
    CallAnswered,
    Deliver,
    RecordEvent,
    RecordTokens,
    Start,
    Stop,
)
from punica_scheduler.event_log_file import write_event_log
from punica_scheduler.factory import scheduler_of
from punica_scheduler.gpu_check import check_gpu
from punica_scheduler.peer_links import PeerLinks, frontend_peer, runner_peer
from punica_scheduler.queries import answer
from punica_scheduler.request_spans import RequestSpans
from punica_scheduler.scale_hook import ScaleHook
from punica_scheduler.telemetry.observer import ClusterObserver
from punica_serve.config.cluster import ClusterConfig
from punica_serve.config.scheduler_section import SchedulerConfig
from punica_serve.errors import ProtocolError
from punica_serve.links.channel import Channel
from punica_serve.links.hello import accept, listen
from punica_serve.links.ssl_context import server_context
from punica_serve.performance.cluster_model import ClusterModel, cluster_model
from punica_serve.process.logs import about, named
from punica_serve.process.readiness import READY, notify
from punica_serve.process.tracing import SpanSink, closing_spans, span_sink
from punica_serve.protocol import (
    AdaptersCached,
    AddRequest,
    AssignmentsFailed,
    CallReply,
    CancelRequest,
    DrainGpu,
    DrainRunner,
    Forget,
    ForgetAdapter,
    FrontendHello,
    GetCluster,
    GetGpu,
    GetHistory,
    GetResidency,
    GpuJoined,
    GpuLost,
    Message,
    PromisesJudged,
    Request,
    RunnerDrained,
    RunnerHello,
    ScaleAdvice,
    StartRequest,
    StepReport,
    StopRequest,
    ToScheduler,
    Warm,
    WarmAdapter,
)

log = logging.getLogger(__name__)

#: How often deadlines are looked at.
TICK_S = 0.2


def _ignore(_: object) -> None:
    pass


async def serve(config: ClusterConfig, token: str, *, on_listening: Callable[[int], object] = _ignore) -> None:
    """Runs the scheduler until cancelled; ``on_listening`` gets the port.

    Raises ConfigError for an address that can't be had, a profile of another model, TLS files that are no
    good, and traces without their exporter.
    """
    hook = ScaleHook(config.scheduler.scale.hook, config.scheduler.scale.hook_timeout_s)
    sink = span_sink("scheduler", config.tracing.otlp_endpoint)
    server = Server(
        config.scheduler,
        token,
        incarnation=time.time_ns(),
        event_log_folder=config.data_folder,
        on_advice=hook.advise,
        sink=sink,
        model=cluster_model(config),
    )
    host = config.scheduler.host
    tls = server_context(config.tls) if config.tls else None
    listening = listen(host, config.scheduler.port, ToScheduler, server.session, config.links, tls)
    async with hook.running(), closing_spans(sink), listening as port:
        log.info("scheduler listens on %s:%d", host, port)
        notify(READY)
        on_listening(port)
        await server.keep_ticking()


class Server:
    """A ``Scheduler`` and the channels to its peers."""

    def __init__(
        self,
        config: SchedulerConfig,
        token: str,
        *,
        incarnation: int,
        event_log_folder: Path,
        on_advice: Callable[[ScaleAdvice], object] = _ignore,
        sink: SpanSink | None = None,
        model: ClusterModel | None = None,
    ) -> None:
        self._token = token
        self._event_log_path = event_log_folder / f"scheduler-events-{incarnation}.txt"
        self._on_advice = on_advice
        self._incarnation = incarnation
        #: From the monotonic clock to the time since 1970, as it was at the start.
        self._clock_offset_ns = incarnation - time.monotonic_ns()
        step_times = model.step_times if model else None
        self._profile = step_times.profile if step_times else None
        self._scheduler = scheduler_of(config, incarnation, model)
        self._observer = ClusterObserver(self._scheduler, incarnation, step_times, self._warn_of_profile)
        self._spans = RequestSpans(sink, self._now_ns) if sink else None
        self._links = PeerLinks[Channel]()
        self._failure: Exception | None = None

    def apply(self, event: events.Event) -> None:
        """Tells the scheduler what happened and does what it says.

        An error here is a bug of ours, after which the state can't be trusted. Every later call raises it again, so the
        ticker ends this incarnation. Frontends add all their requests again to the next one.
        """
        if self._failure is not None:
            raise self._failure
        if self._spans:
            self._spans.happened(event)
        try:
            now_ns = self._now_ns()
            actions = self._scheduler.handle(event, now_ns)
            self._observer.observe(event, actions, now_ns)
            for action in actions:
                self._do(action)
        except Exception as error:
            self._failure = error
            write_event_log(self._scheduler.event_log, self._event_log_path)
            raise

    def _now_ns(self) -> int:
        """Wall-clock time that only advances with the monotonic clock: a changed host clock affects no deadline."""
        return self._clock_offset_ns + time.monotonic_ns()

    async def keep_ticking(self) -> Never:
        """Lets time pass for the scheduler."""
        while True:
            await asyncio.sleep(TICK_S)
            self.apply(events.Tick())

    async def session(self, channel: Channel) -> None:
        """One link, from its hello to its end."""
        match await accept(channel, token=self._token, incarnation=self._incarnation, admit=self._links.admit):
            case FrontendHello(frontend_id=peer_id):
                said = partial(self._frontend_said, channel, peer_id)
                await self._serve_peer(
                    frontend_peer(peer_id), channel, events.FrontendJoined(peer_id), events.FrontendLost(peer_id), said
                )
            case RunnerHello(runner_id=peer_id, instance=instance):
                said = partial(self._runner_said, channel, peer_id)
                self._links.put_runner(peer_id, instance)
                try:
                    await self._serve_peer(
                        runner_peer(peer_id), channel, events.RunnerJoined(peer_id), events.RunnerLost(peer_id), said
                    )
                finally:
                    self._links.forget_runner(peer_id, channel)

    async def _serve_peer(
        self, peer: str, channel: Channel, joined: events.Event, lost: events.Event, said: Callable[[ToScheduler], None]
    ) -> None:
        """A peer's link for as long as it is its newest: one that has dialled again speaks on the new one alone."""
        if (previous := self._links.put(peer, channel)) is not None:
            log.warning("another link of %s has joined; the one before is closed", peer)
            previous.end(f"another link of {peer} has joined")
        log.info("%s joined", peer)
        self.apply(joined)
        try:
            await channel.serve(said)
        finally:
            if self._links.is_newest(peer, channel):
                self._log_leaving(peer, channel)
                self.apply(lost)
                self._links.remove(peer)

    def _log_leaving(self, peer: str, channel: Channel) -> None:
        lost = ", ".join(self._links.gpu_names(channel))
        level = logging.INFO if channel.was_closed or not lost else logging.WARNING
        log.log(level, "%s left%s: %s", peer, lost and f" with its GPUs {lost}", channel.end_reason)

    def _do(self, action: Action) -> None:
        match action:
            case Deliver():
                if self._spans:
                    self._spans.delivered(action)
                _send(self._links.frontend(action.frontend_id), action.deliveries, may_wait=True)
            case Start(gpu_uuid, seq, assignment, request):
                _log_request("request placed", request, gpu=self._links.gpu_name(gpu_uuid))
                if self._spans:
                    request = self._spans.started(action)
                _send(self._links.gpu(gpu_uuid), StartRequest(gpu_uuid, seq, assignment, request))
            case Stop(gpu_uuid, seq, assignment):
                if self._spans:
                    self._spans.stopped(action)
                _send(self._links.gpu(gpu_uuid), StopRequest(gpu_uuid, seq, assignment))
            case AnnounceLimits(frontend_id, limits):
                _send(self._links.frontend(frontend_id), limits)
            case actions.RunnerDrained(runner_id):
                log.info("nothing is left on the GPUs of runner %s", runner_id)
                _send(self._links.runner(runner_id), RunnerDrained())
            case CallAnswered(frontend_id, call_id, error):
                _send(self._links.frontend(frontend_id), CallReply(call_id, error))
            case actions.Warm(gpu_uuid, adapter, pin, host_only):
                _send(self._links.gpu(gpu_uuid), Warm(gpu_uuid, adapter, pin, host_only))
            case actions.Forget(runner_id, digest):
                _send(self._links.runner(runner_id), Forget(digest))
            case Advise(advice):
                self._on_advice(advice)
            case RecordEvent() | RecordTokens():
                pass  # the observer's
            case _:
                assert_never(action)

    def _frontend_said(self, channel: Channel, frontend_id: str, message: ToScheduler) -> None:
        match message:
            case AddRequest(handle, request, quota, is_new):
                _log_request("request arrived", request, frontend=frontend_id)
                self.apply(events.RequestArrived(frontend_id, handle, request, quota, is_new))
            case CancelRequest(request_id):
                self.apply(events.RequestCancelled(frontend_id, request_id))
            case GetCluster() | GetGpu() | GetHistory() | GetResidency():
                _send(channel, answer(message, self._scheduler, self._observer, self._now_ns()))
            case DrainGpu(call_id, gpu, drain):
                log.info("GPU %s is to be %s", gpu, "drained" if drain else "used again")
                self.apply(events.GpuDrainRequested(frontend_id, call_id, gpu, drain))
            case WarmAdapter():
                self.apply(events.WarmingRequested(frontend_id, message))
            case ForgetAdapter(digest=digest):
                log.info("adapter %s is to be evicted", digest)
                self.apply(events.ForgettingRequested(frontend_id, message))
            case PromisesJudged(promises):
                self._observer.count_promises(promises)
            case _:
                raise ProtocolError(f"a frontend may not send {type(message).__name__}")

    def _warn_of_profile(self, uuid: str, ratio: float) -> None:
        log.warning(
            "steps of GPU %s take %.2f x the time that `scheduler.profile` predicts; measure it anew with "
            "`punica-serve profile`",
            self._links.gpu_name(uuid),
            ratio,
        )

    def _runner_said(self, channel: Channel, runner_id: str, message: ToScheduler) -> None:
        match message:
            # A GPU that was lost, or that another runner has joined since, is no longer this one's to speak for.
            case StepReport() | AssignmentsFailed() | GpuLost() if not self._links.owns(channel, message.gpu_uuid):
                pass
            case StepReport():
                self.apply(events.StepFinished(message))
            case AssignmentsFailed():
                self.apply(events.AssignmentsFailed(message))
            case GpuLost(gpu_uuid, reason):
                log.warning("GPU %s is lost: %s", self._links.gpu_name(gpu_uuid), reason)
                self.apply(events.GpuLost(gpu_uuid))
                self._links.forget_gpu(gpu_uuid)
            case GpuJoined(gpu):
                check_gpu(gpu, self._profile)
                log.info("GPU %s (%s) of runner %s joined", gpu.name, gpu.uuid, runner_id)
                self._links.put_gpu(gpu.uuid, gpu.name, channel)
                self.apply(events.GpuJoined(runner_id, gpu))
            case AdaptersCached():
                if message.gpu_uuid is None or self._links.owns(channel, message.gpu_uuid):
                    self.apply(events.AdaptersCached(runner_id, message))
            case DrainRunner():
                log.info("runner %s is to be drained", runner_id)
                self.apply(events.RunnerDrainRequested(runner_id))
            case _:
                raise ProtocolError(f"a runner may not send {type(message).__name__}")


def _log_request(what: str, request: Request, **more: str) -> None:
    if log.isEnabledFor(logging.DEBUG):
        log.debug(what, extra=about(**named(request), **more))


def _send(channel: Channel, message: Message, *, may_wait: bool = False) -> None:
    """Sends a message. One that can't be sent despite admission closes this link alone; its peer dials again."""
    try:
        channel.send(message, may_wait=may_wait)
    except ProtocolError as error:
        log.error("a link is closed: %s", error)
        channel.end(error.message)
