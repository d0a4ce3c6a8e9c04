"""WS /v1/cluster/watch: repeated views of the cluster; and the schema of its frames."""

from collections import Counter
from functools import partial

from fastapi import APIRouter
from starlette.requests import HTTPConnection
from starlette.routing import WebSocketRoute
from starlette.types import Receive, Scope, Send

from punica_frontend.api.caller import Caller, caller_of
from punica_frontend.api.errors import answer_of
from punica_frontend.api.schema_file import add_schema_route
from punica_frontend.scheduler_link.scheduler_client import SchedulerClient
from punica_frontend.tenancy.authenticator import Authenticator
from punica_frontend.watch.frames import Frames
from punica_frontend.watch.schema import watch_schema
from punica_frontend.watch.view import Viewer
from punica_frontend.watch.watcher import Watcher
from punica_serve.errors import InvalidRequest, PunicaError, QuotaExceeded
from punica_serve.registry.registry import Registry

MIN_PER_S, MAX_PER_S = 0.1, 5.0
#: The most watchers of a tenant at one frontend: each is a connection, and may receive megabytes a second.
MAX_TENANT_WATCHERS = 100


def watch_router(
    client: SchedulerClient, registry: Registry, frames: Frames, authenticator: Authenticator
) -> APIRouter:
    router = APIRouter(
        routes=[WebSocketRoute("/v1/cluster/watch", _WatchRoute(client, registry, frames, authenticator))],
        tags=["cluster"],
    )
    add_schema_route(
        router,
        "/v1/cluster/watch/schema",
        watch_schema,
        summary="The frames of the watch",
        description="JSON Schema of the frames that `WS /v1/cluster/watch` sends.",
    )
    return router


class _WatchRoute:
    """The websocket's route, a plain ASGI application like the other one."""

    def __init__(
        self, client: SchedulerClient, registry: Registry, frames: Frames, authenticator: Authenticator
    ) -> None:
        self._client = client
        self._frames = frames
        self._registry = registry
        self._authenticator = authenticator
        #: Watchers by their tenants' ids.
        self._num_watchers: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection = HTTPConnection(scope)
        caller = caller_of(connection)
        try:
            self._check_room(caller)
            per_s = _per_s(connection.query_params.get("per_s", "1"))
        except PunicaError as error:
            await answer_of(error)(scope, receive, send)
            return
        viewer = Viewer(caller, self._registry)
        is_still_valid = partial(self._authenticator.is_still_valid, caller)
        watcher = Watcher(self._client, self._frames, viewer, is_still_valid, interval_s=1 / per_s)
        self._num_watchers[caller.tenant_id] += 1
        try:
            await receive()  # "websocket.connect"
            await send({"type": "websocket.accept"})
            await watcher.run(receive, send)
        finally:
            self._num_watchers[caller.tenant_id] -= 1
            self._num_watchers += Counter()  # drops tenants with none

    def _check_room(self, caller: Caller) -> None:
        if self._num_watchers[caller.tenant_id] >= MAX_TENANT_WATCHERS:
            raise QuotaExceeded(
                f"tenant {caller.tenant!r} has {MAX_TENANT_WATCHERS} watchers at this frontend, which is the limit; "
                "close one, or use GET /v1/cluster"
            )


def _per_s(text: str) -> float:
    """Returns the updates per second. Raises InvalidRequest."""
    try:
        per_s = float(text)
    except ValueError:
        per_s = 0.0
    if not MIN_PER_S <= per_s <= MAX_PER_S:  # also refuses NaN
        raise InvalidRequest(
            f"`per_s` is {text[:32]!r}; it must be a number of updates per second from {MIN_PER_S:g} to {MAX_PER_S:g}",
            param="per_s",
        )
    return per_s
