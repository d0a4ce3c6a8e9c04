"""The frontend's end of the link to the scheduler.

``SchedulerClient`` is all that the routes know of a cluster; ``WireSchedulerClient`` is the one over a websocket.
"""

import asyncio
import itertools
import ssl
import uuid
from collections.abc import Callable, Collection
from functools import partial
from itertools import repeat
from typing import Any, Never, Protocol

from punica_frontend.errors import from_wire
from punica_frontend.live_request import Backlog, LiveRequest, SlowReader
from punica_frontend.sharing import Shared
from punica_serve.channel import Channel
from punica_serve.config import LinksConfig
from punica_serve.errors import ClusterUnavailable, ProtocolError
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
    GetHistory,
    GetResidency,
    HistoryReply,
    Limits,
    Message,
    Request,
    ResidencyReply,
    SchedulerToFrontend,
    TenantQuota,
    WarmAdapter,
    Welcome,
    WireError,
    decode_history,
)
from punica_serve.wire import keep_dialling

#: How long a new request waits for a scheduler that is not there.
CONNECT_TIMEOUT_S = 5.0

#: How long live requests outlive the link; they go on where they were when it is back in time. A scheduler that freezes
#: while it starts is killed after 60 s by `up`, after 90 by systemd, and then has to start once more.
RECOVERY_TIMEOUT_S = 120.0

#: For the answer to a unary call.
CALL_TIMEOUT_S = 5.0


class SchedulerClient(Protocol):
    """A cluster, as seen by the routes."""

    @property
    def connected(self) -> bool:
        """The scheduler can be reached now."""

    @property
    def limits(self) -> Limits | None:
        """What the cluster can hold; None until the scheduler has said it."""

    async def start(
        self,
        request: Request,
        quota: TenantQuota | None,
        on_ready: Callable[[], None],
        backlog: Backlog,
        account: Callable[[Ending], None],
    ) -> LiveRequest:
        """Adds a request to the cluster. It must be stopped in the end. Raises ClusterUnavailable.

        ``quota`` is its tenant's, which the scheduler counts. ``on_ready`` is called when the request begins to have
        something to take; what waits is counted in ``backlog``. ``account`` is told what the request took when it has
        ended, which for one that is stopped early may be later.
        """

    def stop(self, live: LiveRequest) -> None:
        """Forgets a request, and cancels it unless it has finished. May be called again."""

    async def cluster(self) -> ClusterSnapshot:
        """The scheduler's view of now. Raises ClusterUnavailable."""

    async def history(self) -> ClusterHistory:
        """What the last minutes were like. Raises ClusterUnavailable."""

    async def drain_gpu(self, gpu_uuid: str, *, drain: bool) -> None:
        """Has a GPU emptied and left alone, or used again. Raises GpuNotFound, InvalidRequest or ClusterUnavailable."""

    async def warm(self, adapter: AdapterRef, gpu_uuids: Collection[str] = (), *, pin: bool | None = None) -> None:
        """Brings an adapter to these GPUs, or to all, before anyone asks for it; see WarmAdapter for ``pin``.

        Returns once that has been passed on. Raises GpuNotFound or ClusterUnavailable.
        """

    async def forget(self, digest: str) -> None:
        """Has an adapter freed everywhere as soon as no request uses it. Raises ClusterUnavailable."""

    async def residency(self, digests: Collection[str] = ()) -> tuple[AdapterResidency, ...]:
        """Where these adapters are, or all that are anywhere. Raises ClusterUnavailable."""


class WireSchedulerClient:
    """Owns this frontend's requests until they finish, whatever happens to the link.

    ``run`` keeps the link; it has to run beside whatever uses the rest.
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
        self._has_ended = False
        #: By the handle that the scheduler knows them by.
        self._live: dict[int, LiveRequest] = {}
        #: Cancelled on this side, until the scheduler says what they took.
        self._cancelled: dict[int, LiveRequest] = {}
        self._handles = itertools.count()
        self._call_ids = itertools.count()
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._cluster = Shared(self._get_cluster)

    @property
    def connected(self) -> bool:
        return self._channel is not None

    @property
    def limits(self) -> Limits | None:
        return self._limits

    async def run(self) -> Never:
        """Keeps the link to the scheduler until cancelled."""
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
            self._fail_all("the frontend is shutting down; try another")

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
        # From here on the scheduler's queue has a deadline for it, and without a scheduler _give_up ends it.
        self._live[live.handle] = live
        return live

    def stop(self, live: LiveRequest) -> None:
        if self._live.pop(live.handle, None) and not live.is_finished:
            self._cancel(live)

    async def cluster(self) -> ClusterSnapshot:
        return await self._cluster()

    async def history(self) -> ClusterHistory:
        reply: HistoryReply = await self._call(GetHistory)
        # Of a thousand GPUs it is a million numbers.
        return await asyncio.to_thread(decode_history, reply.history)

    async def _get_cluster(self) -> ClusterSnapshot:
        reply: ClusterReply = await self._call(GetCluster)
        return reply.cluster

    async def drain_gpu(self, gpu_uuid: str, *, drain: bool) -> None:
        await self._call(partial(DrainGpu, gpu_uuid=gpu_uuid, drain=drain))

    async def warm(self, adapter: AdapterRef, gpu_uuids: Collection[str] = (), *, pin: bool | None = None) -> None:
        await self._call(partial(WarmAdapter, adapter=adapter, gpu_uuids=tuple(gpu_uuids), pin=pin))

    async def forget(self, digest: str) -> None:
        await self._call(partial(ForgetAdapter, digest=digest))

    async def residency(self, digests: Collection[str] = ()) -> tuple[AdapterResidency, ...]:
        reply: ResidencyReply = await self._call(partial(GetResidency, digests=tuple(digests)))
        return reply.adapters

    async def _call(self, message: Callable[[int], Message]) -> Any:
        """The reply to a unary call, which ``message`` makes from its call_id.

        Raises ClusterUnavailable, and the error that the scheduler answers with.
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

    def _receive(self, message: Any) -> None:
        match message:
            case Deliveries():
                self._deliver(message)
            case Limits():
                self._limits = message
            case ClusterReply() | HistoryReply() | CallReply() | ResidencyReply():
                call = self._calls.get(message.call_id)
                if call and not call.done():
                    call.set_result(message)
            case _:
                raise ProtocolError(f"the scheduler sent a {type(message).__name__} after its welcome")

    def _deliver(self, deliveries: Deliveries) -> None:
        """Hands out tokens, then ends. Of a request that was cancelled on this side, only what it took matters."""
        logprobs = deliveries.logprobs or repeat(None)
        for handle, position, token_id, token_logprobs in zip(
            deliveries.handles, deliveries.positions, deliveries.token_ids, logprobs, strict=False
        ):
            if live := self._live.get(handle):
                try:
                    live.accept(deliveries.offset + position, token_id, token_logprobs)
                except SlowReader as error:
                    live.fail(WireError.of(error))
                    self._cancel(live)
        for ending in deliveries.endings:
            live, cancelled = self._live.get(ending.handle), self._cancelled.pop(ending.handle, None)
            if known := live or cancelled:
                known.account(ending)
            if live:
                live.end(ending)

    def _cancel(self, live: LiveRequest) -> None:
        """Without a link there is nothing to cancel: the scheduler has dropped this frontend's requests."""
        if self._channel:
            self._cancelled[live.handle] = live
            self._channel.send(CancelRequest(live.request.request_id))

    def _send(self, message: Message) -> None:
        if self._channel is None:
            raise ClusterUnavailable("the scheduler can't be reached; try again")
        self._channel.send(message)

    async def _wait_connected(self) -> None:
        if self._has_ended:
            raise ClusterUnavailable("the frontend is shutting down; try another")
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await self._connected.wait()
        except TimeoutError:
            raise ClusterUnavailable(f"the scheduler at {self._url} can't be reached; try again") from None

    def _give_up(self) -> None:
        self._fail_all("the scheduler was lost and did not come back; try again")

    def _fail_all(self, message: str) -> None:
        for live in self._live.values():
            live.fail(WireError(ClusterUnavailable.code, message))
