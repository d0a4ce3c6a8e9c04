"""WS /v1/cluster/watch: the cluster, again and again; and what its frames look like."""

from collections import Counter
from functools import partial

from fastapi import APIRouter
from starlette.requests import HTTPConnection
from starlette.routing import WebSocketRoute
from starlette.types import Receive, Scope, Send

from punica_frontend.caller import caller_of
from punica_frontend.errors import answer_of
from punica_frontend.scheduler_client import SchedulerClient
from punica_frontend.schema_file import add_schema_route
from punica_frontend.tenancy.door import Door
from punica_frontend.watch.frames import Frames
from punica_frontend.watch.schema import watch_schema
from punica_frontend.watch.view import Viewer
from punica_frontend.watch.watcher import Watcher
from punica_serve.errors import InvalidRequest, PunicaError, QuotaExceeded
from punica_serve.registry.registry import Registry

MIN_PER_S, MAX_PER_S = 0.1, 5.0
#: At one frontend: each is a connection, and may be sent megabytes a second.
MAX_TENANT_WATCHERS = 100


def watch_router(client: SchedulerClient, registry: Registry, frames: Frames, door: Door) -> APIRouter:
    router = APIRouter(
        routes=[WebSocketRoute("/v1/cluster/watch", _WatchRoute(client, registry, frames, door))], tags=["cluster"]
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
    """An ASGI application of its own, like the other websocket's."""

    def __init__(self, client: SchedulerClient, registry: Registry, frames: Frames, door: Door) -> None:
        self._client = client
        self._frames = frames
        self._registry = registry
        self._door = door
        #: Watchers by tenant.
        self._num_watchers: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection = HTTPConnection(scope)
        caller = caller_of(connection)
        try:
            self._check_room(caller.tenant)
            per_s = _per_s(connection.query_params.get("per_s", "1"))
        except PunicaError as error:
            await answer_of(error)(scope, receive, send)
            return
        viewer = Viewer(caller, self._registry)
        may_stay = partial(self._door.may_stay, caller)
        watcher = Watcher(self._client, self._frames, viewer, may_stay, interval_s=1 / per_s)
        self._num_watchers[caller.tenant] += 1
        try:
            await receive()  # "websocket.connect"
            await send({"type": "websocket.accept"})
            await watcher.run(receive, send)
        finally:
            self._num_watchers[caller.tenant] -= 1
            self._num_watchers += Counter()  # without those of nobody

    def _check_room(self, tenant: str) -> None:
        if self._num_watchers[tenant] >= MAX_TENANT_WATCHERS:
            raise QuotaExceeded(
                f"tenant {tenant!r} watches the cluster {MAX_TENANT_WATCHERS} times at this frontend already, "
                "which is all it may: close a watcher, or ask GET /v1/cluster"
            )


def _per_s(text: str) -> float:
    """How often a second. Raises InvalidRequest."""
    try:
        per_s = float(text)
    except ValueError:
        per_s = 0.0
    if not MIN_PER_S <= per_s <= MAX_PER_S:  # not a number is not between them
        raise InvalidRequest(
            f"per_s is how often a second to tell, from {MIN_PER_S:g} to {MAX_PER_S:g}, not {text[:32]!r}",
            param="per_s",
        )
    return per_s
