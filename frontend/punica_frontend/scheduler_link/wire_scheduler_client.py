"""The frontend's end of the link to the scheduler."""

import asyncio
import itertools
import ssl
import uuid
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any, Never

from punica_frontend.api.errors import SlowReader, from_wire
from punica_frontend.scheduler_link.delivery_order import Row, first_rows
from punica_frontend.scheduler_link.live_request import Backlog, LiveRequest
from punica_frontend.scheduler_link.promise_reporter import PromiseReporter
from punica_frontend.scheduler_link.single_flight import CoalescedCall
from punica_serve.config.links_section import LinksConfig
from punica_serve.errors import ClusterUnavailable, ProtocolError
from punica_serve.links.channel import Channel, Rest
from punica_serve.links.hello import keep_dialling
from punica_serve.protocol import (
    PROTOCOL_VERSION,
    AdapterRef,
    AdapterResidency,
    AddRequest,
    CallReply,
    CancelRequest,
    ClusterHistory,
    ClusterReply,
    ClusterSnapshot,
    Deliveries,
    DrainGpu,
    Ending,
    ForgetAdapter,
    FrontendHello,
    GetCluster,
    GetGpu,
    GetHistory,
    GetResidency,
    GpuDetails,
    GpuReply,
    HistoryReply,
    Limits,
    Message,
    PromiseCounts,
    PromisesJudged,
    Request,
    ResidencyReply,
    SchedulerToFrontend,
    TenantQuota,
    WarmAdapter,
    Welcome,
    WireError,
    decode_history,
)

#: Clients see it, so it names no address.
UNREACHABLE = "the scheduler can't be reached; try again"

#: How long a new request waits for the link to come up.
CONNECT_TIMEOUT_S = 5.0

#: How long live requests survive a lost link; they continue if it comes back in time. `up` kills a frozen scheduler
#: after 60 s and systemd after 90 s, and then it has to start again.
RECOVERY_TIMEOUT_S = 120.0

#: Deadline for the reply to a unary call.
CALL_TIMEOUT_S = 5.0


class WireSchedulerClient:
    """Owns this frontend's requests until they finish, across reconnects.

    ``run`` keeps the link up and must be running while the other methods are used.
    """

    def __init__(
        self, url: str, token: str, links: LinksConfig | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self._url = url
        self._links = links or LinksConfig()
        self._tls = tls
        self._hello = FrontendHello(PROTOCOL_VERSION, token, f"frontend-{uuid.uuid4().hex}")
        self._channel: Channel | None = None
        self._connected = asyncio.Event()
        self._limits: Limits | None = None
        self._last_request_tokens: int | None = None
        self._has_ended = False
        #: Requests by their handles.
        self._live: dict[int, LiveRequest] = {}
        #: Requests cancelled here, until the scheduler reports their resource usage.
        self._cancelled: dict[int, LiveRequest] = {}
        self._handles = itertools.count()
        self._call_ids = itertools.count()
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._cluster = CoalescedCall(self._get_cluster)
        self._promises = PromiseReporter(self._send_promises)

    @property
    def connected(self) -> bool:
        return self._channel is not None

    @property
    def limits(self) -> Limits | None:
        return self._limits

    @property
    def last_request_tokens(self) -> int | None:
        return self._last_request_tokens

    async def run(self) -> Never:
        """Keeps the link to the scheduler up until cancelled."""
        giving_up = asyncio.get_running_loop().call_later(RECOVERY_TIMEOUT_S, self._give_up)

        async def session(channel: Channel, _: Welcome) -> None:
            nonlocal giving_up
            giving_up.cancel()
            try:
                await self._session(channel)
            finally:
                giving_up = asyncio.get_running_loop().call_later(RECOVERY_TIMEOUT_S, self._give_up)

        try:
            await keep_dialling(self._url, lambda: self._hello, SchedulerToFrontend, session, self._links, self._tls)
        finally:
            giving_up.cancel()
            self._has_ended = True
            self._promises.close()
            self._fail_all("this frontend is shutting down; try another")

    async def start(
        self,
        request: Request,
        quota: TenantQuota | None,
        on_ready: Callable[[], None],
        backlog: Backlog,
        account: Callable[[Ending], None],
    ) -> LiveRequest:
        await self._wait_connected()
        live = LiveRequest(next(self._handles), request, quota, on_ready, backlog, account)
        self._send(AddRequest(live.handle, request, quota))
        # From here on the scheduler's queue timeout applies; without a scheduler, _give_up ends it.
        self._live[live.handle] = live
        return live

    def stop(self, live: LiveRequest) -> None:
        if self._live.pop(live.handle, None) and not live.is_finished:
            self._cancel(live)

    def report_promises(self, promises: PromiseCounts) -> None:
        self._promises.add(promises)

    async def cluster(self) -> ClusterSnapshot:
        return await self._cluster()

    async def history(self) -> ClusterHistory:
        reply: HistoryReply = await self._call(GetHistory)
        # For a thousand GPUs this is a million numbers.
        return await asyncio.to_thread(decode_history, reply.history)

    async def _get_cluster(self) -> ClusterSnapshot:
        reply: ClusterReply = await self._call(GetCluster)
        return reply.cluster

    async def gpu(self, gpu: str) -> GpuDetails:
        reply: GpuReply = await self._call(partial(GetGpu, gpu=gpu))
        return reply.details

    async def drain_gpu(self, gpu: str, *, drain: bool) -> None:
        await self._call(partial(DrainGpu, gpu=gpu, drain=drain))

    async def prefetch(self, adapter: AdapterRef, gpus: Collection[str] = (), *, pin: bool | None = None) -> None:
        await self._call(partial(WarmAdapter, adapter=adapter, gpus=tuple(gpus), pin=pin))

    async def evict(self, digest: str) -> None:
        await self._call(partial(ForgetAdapter, digest=digest))

    async def residency(self, digests: Collection[str] = ()) -> tuple[AdapterResidency, ...]:
        reply: ResidencyReply = await self._call(partial(GetResidency, digests=tuple(digests)))
        return reply.adapters

    async def _call(self, message: Callable[[int], Message]) -> Any:
        """Returns the reply to a unary call; ``message`` builds the call from its call_id.

        Raises ClusterUnavailable, or the error that the scheduler replies with.
        """
        call_id = next(self._call_ids)
        call: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls[call_id] = call
        try:
            self._send(message(call_id))
            async with asyncio.timeout(CALL_TIMEOUT_S):
                reply = await call
        except TimeoutError:
            raise ClusterUnavailable(f"the scheduler did not answer within {CALL_TIMEOUT_S:g} s") from None
        finally:
            del self._calls[call_id]
        if isinstance(reply, CallReply) and reply.error:
            raise from_wire(reply.error)
        return reply

    async def _session(self, channel: Channel) -> None:
        self._channel = channel
        self._connected.set()
        self._promises.resume()
        for live in self._live.values():
            if not live.is_finished:
                channel.send(AddRequest(live.handle, live.resumed(), live.quota, is_new=False))
        try:
            await channel.serve(self._receive)
        finally:
            self._channel = self._limits = None
            self._connected.clear()
            self._cancelled.clear()
            for call in self._calls.values():
                if not call.done():
                    call.set_exception(ClusterUnavailable("the link to the scheduler was lost; try again"))

    def _receive(self, message: Any) -> Rest | None:
        match message:
            case Deliveries():
                return self._deliver(message)
            case Limits():
                self._limits = message
                if message.num_gpus:
                    self._last_request_tokens = message.max_request_tokens
            case ClusterReply() | GpuReply() | HistoryReply() | CallReply() | ResidencyReply():
                call = self._calls.get(message.call_id)
                if call and not call.done():
                    call.set_result(message)
            case _:
                raise ProtocolError(f"the scheduler sent a {type(message).__name__} after its welcome")
        return None

    def _deliver(self, deliveries: Deliveries) -> Rest | None:
        """Passes on remaining quotas, then tokens, then ends.

        Requests that begin or end come first, and the rest passes on all other tokens: a client that waits for its
        first token, or sends its next request after the last one, does not wait for the writes of a whole batch.
        For a request that was cancelled here, only its resource usage matters.
        """
        for rate_limits in deliveries.rate_limits:
            if live := self._live.get(rate_limits.handle):
                live.rate_limits = rate_limits
        for handle, num_cached in deliveries.cached:
            if live := self._live.get(handle):
                live.num_cached_tokens = num_cached
        ended = {ending.handle for ending in deliveries.endings}
        first, later = first_rows(deliveries, ended)
        self._accept(first, ended)
        for ending in deliveries.endings:
            live, cancelled = self._live.get(ending.handle), self._cancelled.pop(ending.handle, None)
            if known := live or cancelled:
                known.account(ending)
            if live:
                live.end(ending)
        return partial(self._accept, later) if later else None

    def _accept(self, rows: Iterable[Row], ended: Collection[int] = ()) -> None:
        """Passes on tokens; the ends of the requests in ``ended`` follow at once."""
        for handle, position, token_id, logprobs in rows:
            if live := self._live.get(handle):
                try:
                    live.accept(position, token_id, logprobs, is_last=handle in ended)
                except SlowReader as error:
                    live.fail(WireError.of(error))
                    self._cancel(live)

    def _cancel(self, live: LiveRequest) -> None:
        """Without a link there is nothing to cancel: the scheduler has dropped this frontend's requests."""
        if self._channel:
            self._cancelled[live.handle] = live
            self._channel.send(CancelRequest(live.request.request_id))

    def _send_promises(self, judged: PromisesJudged) -> bool:
        if self._channel:
            self._channel.send(judged)
        return self._channel is not None

    def _send(self, message: Message) -> None:
        if self._channel is None:
            raise ClusterUnavailable(UNREACHABLE)
        self._channel.send(message)

    async def _wait_connected(self) -> None:
        if self.connected:
            return
        if self._has_ended:
            raise ClusterUnavailable("this frontend is shutting down; try another")
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await self._connected.wait()
        except TimeoutError:
            raise ClusterUnavailable(UNREACHABLE) from None

    def _give_up(self) -> None:
        self._fail_all("the link to the scheduler was lost and did not come back in time; try again")

    def _fail_all(self, message: str) -> None:
        for live in self._live.values():
            live.fail(WireError(ClusterUnavailable.code, message))
