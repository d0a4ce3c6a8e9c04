"""The frontend's end of the link to the scheduler.

``SchedulerClient`` is all that the routes know of a cluster; ``WireSchedulerClient`` is the one over a websocket.
"""

import asyncio
import itertools
import ssl
import uuid
from collections.abc import Callable
from functools import partial
from itertools import repeat
from typing import Any, Never, Protocol

from punica_frontend.errors import from_wire
from punica_frontend.live_request import Backlog, LiveRequest, SlowReader
from punica_serve.channel import Channel
from punica_serve.config import LinksConfig
from punica_serve.errors import ClusterUnavailable, ProtocolError
from punica_serve.protocol import (
    PROTOCOL_VERSION,
    AddRequest,
    CancelRequest,
    ClusterReply,
    ClusterSnapshot,
    Deliveries,
    DrainGpu,
    DrainReply,
    FrontendHello,
    GetCluster,
    Limits,
    Message,
    Request,
    SchedulerToFrontend,
    Welcome,
    WireError,
)
from punica_serve.wire import keep_dialling

#: How long a new request waits for a scheduler that is not there.
CONNECT_TIMEOUT_S = 5.0

#: How long live requests outlive the link; they go on where they were when it is back in time.
RECOVERY_TIMEOUT_S = 60.0

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

    async def start(self, request: Request, on_ready: Callable[[], None], backlog: Backlog) -> LiveRequest:
        """Adds a request to the cluster. It must be stopped in the end. Raises ClusterUnavailable.

        ``on_ready`` is called when it begins to have something to take; what waits is counted in ``backlog``.
        """

    def stop(self, live: LiveRequest) -> None:
        """Forgets a request, and cancels it unless it has finished. May be called again."""

    async def cluster(self) -> ClusterSnapshot:
        """The scheduler's view of now. Raises ClusterUnavailable."""

    async def drain_gpu(self, gpu_uuid: str, *, drain: bool) -> None:
        """Has a GPU emptied and left alone, or used again. Raises GpuNotFound, InvalidRequest or ClusterUnavailable."""


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
        self._handles = itertools.count()
        self._call_ids = itertools.count()
        self._calls: dict[int, asyncio.Future[Any]] = {}

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

    async def start(self, request: Request, on_ready: Callable[[], None], backlog: Backlog) -> LiveRequest:
        await self._wait_connected()
        live = LiveRequest(next(self._handles), request, on_ready, backlog)
        self._send(AddRequest(live.handle, request))
        # From here on the scheduler's queue has a deadline for it, and without a scheduler _give_up ends it.
        self._live[live.handle] = live
        return live

    def stop(self, live: LiveRequest) -> None:
        if self._live.pop(live.handle, None) and not live.is_finished:
            self._cancel(live)

    async def cluster(self) -> ClusterSnapshot:
        reply: ClusterReply = await self._call(GetCluster)
        return reply.cluster

    async def drain_gpu(self, gpu_uuid: str, *, drain: bool) -> None:
        reply: DrainReply = await self._call(partial(DrainGpu, gpu_uuid=gpu_uuid, drain=drain))
        if reply.error:
            raise from_wire(reply.error)

    async def _call(self, message: Callable[[int], Message]) -> Any:
        """The reply to a unary call, which ``message`` makes from its call_id. Raises ClusterUnavailable."""
        call_id = next(self._call_ids)
        call: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls[call_id] = call
        try:
            self._send(message(call_id))
            async with asyncio.timeout(CALL_TIMEOUT_S):
                return await call
        except TimeoutError:
            raise ClusterUnavailable(f"the scheduler did not answer within {CALL_TIMEOUT_S:g} s") from None
        finally:
            del self._calls[call_id]

    async def _session(self, channel: Channel) -> None:
        self._channel = channel
        self._connected.set()
        for live in self._live.values():
            if not live.is_finished:
                channel.send(AddRequest(live.handle, live.resumed()))
        try:
            async for message in channel:
                self._receive(message)
        finally:
            self._channel = self._limits = None
            self._connected.clear()
            for call in self._calls.values():
                if not call.done():
                    call.set_exception(ClusterUnavailable("the link to the scheduler was lost; try again"))

    def _receive(self, message: Any) -> None:
        match message:
            case Deliveries():
                self._deliver(message)
            case Limits():
                self._limits = message
            case ClusterReply() | DrainReply():
                call = self._calls.get(message.call_id)
                if call and not call.done():
                    call.set_result(message)
            case _:
                raise ProtocolError(f"the scheduler sent a {type(message).__name__} after its welcome")

    def _deliver(self, deliveries: Deliveries) -> None:
        """Hands out tokens, then ends. Of a request that was cancelled on this side, the last words are not awaited."""
        logprobs = deliveries.logprobs or repeat(None)
        for handle, position, token_id, token_logprobs in zip(
            deliveries.handles, deliveries.positions, deliveries.token_ids, logprobs, strict=False
        ):
            if live := self._live.get(handle):
                try:
                    live.accept(position, token_id, token_logprobs)
                except SlowReader as error:
                    live.fail(WireError.of(error))
                    self._cancel(live)
        for ending in deliveries.endings:
            if live := self._live.get(ending.handle):
                live.end(ending)

    def _cancel(self, live: LiveRequest) -> None:
        """Without a link there is nothing to cancel: the scheduler has dropped this frontend's requests."""
        if self._channel:
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
