"""Serves health checks while the registry can't be read, and refuses everything else.

The application is created only once the API keys are known, so no route can be open by mistake.
"""

import asyncio
import logging
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from starlette.responses import JSONResponse, PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from punica_frontend.api.errors import answer_of
from punica_frontend.http.http_server import http_server
from punica_frontend.http.trailing_slashes import WithoutTrailingSlash
from punica_frontend.metrics.metrics import CutReason
from punica_serve.errors import RegistryUnavailable
from punica_serve.links.backoff import Backoff
from punica_serve.process.readiness import READY, notify
from punica_serve.process.run import Drain
from punica_serve.registry.registry import Registry
from punica_serve.registry.shared_adapters import SharedAdapters

#: Most registries open within this time; until then clients wait, as they do during the rest of the start.
PATIENCE_S = 1.0
_FIRST_BACKOFF_S, _MAX_BACKOFF_S = 0.2, 2.0
_MAX_BODY_BYTES = 1 << 16

#: Liveness checks.
_ALIVE: Mapping[str, ASGIApp] = {"/health": JSONResponse({"status": "ok"}), "/ping": PlainTextResponse()}

log = logging.getLogger(__name__)


@asynccontextmanager
async def registry_when_available(
    url: str,
    shared: SharedAdapters,
    *,
    listener: socket.socket,
    max_connections: int,
    drain: Drain,
    deadline_s: float,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[Registry | None]:
    """The registry, as soon as its database can be read; None if the process has to end first.

    ``deadline_s``: of its calls. Raises ConfigError for a database of a newer version, and for a file that can't be
    written.
    """
    opening = asyncio.create_task(_open(url, shared, deadline_s))
    leaving = asyncio.create_task(drain.wanted())
    try:
        done, _ = await asyncio.wait((opening, leaving), timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            async with _refusing(listener, max_connections, tls):
                await asyncio.wait((opening, leaving), return_when=asyncio.FIRST_COMPLETED)
        yield opening.result() if opening.done() else None
    finally:
        opening.cancel()
        leaving.cancel()
        await asyncio.wait((opening, leaving))
        if not opening.cancelled() and opening.exception() is None:
            await opening.result().close()


async def _open(url: str, shared: SharedAdapters, deadline_s: float) -> Registry:
    backoff = Backoff(_FIRST_BACKOFF_S, _MAX_BACKOFF_S, reset_after_s=_MAX_BACKOFF_S)
    logged = None
    while True:
        try:
            registry = await Registry.open(url, shared=shared, deadline_s=deadline_s)
        except RegistryUnavailable as error:
            if str(error) != logged:
                log.warning("refusing requests until the registry can be read: %s", error)
                logged = str(error)
        else:
            if logged:
                log.info("the registry can be read now")
            return registry
        await asyncio.sleep(backoff.after(0.0))


@asynccontextmanager
async def _refusing(
    listener: socket.socket, max_connections: int, tls: ssl.SSLContext | None = None
) -> AsyncIterator[None]:
    """Answers on the listener, which stays open: the server that follows may still serve new connections."""
    num_cut = Counter[CutReason]()  # there are no metrics yet
    app = WithoutTrailingSlash(_refuse)
    server = http_server(app, num_cut, max_body_bytes=_MAX_BODY_BYTES, max_connections=max_connections, tls=tls)
    serving = asyncio.create_task(server.serve(sockets=[listener.dup()]))
    notify(READY)  # a restart by the supervisor would not help
    try:
        yield
    finally:
        server.should_exit = True
        await asyncio.wait((serving,))
        serving.result()


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["path"] in _ALIVE:
        await _ALIVE[scope["path"]](scope, receive, send)
        return
    message = "not ready: the registry of adapters and keys can't be read yet; the frontend's log says why"
    await answer_of(RegistryUnavailable(message))(scope, receive, send)
