"""Before the registry has been read: the frontend says that it lives and what it waits for, and lets nobody in.

The application, and all that it would let in, is made once the keys are known. So nothing here can be forgotten to be
closed.
"""

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from punica_frontend.errors import answer_of
from punica_frontend.http_server import http_server
from punica_frontend.metrics.figures import Cut
from punica_serve.backoff import Backoff
from punica_serve.errors import RegistryUnavailable
from punica_serve.notify import READY, notify
from punica_serve.process import Drain
from punica_serve.registry.registry import Registry
from punica_serve.registry.snapshot import SharedAdapters

#: Most registries open sooner; until then clients wait as they do for the rest of the start.
PATIENCE_S = 1.0
_FIRST_BACKOFF_S, _MAX_BACKOFF_S = 0.2, 2.0
_MAX_BODY_BYTES = 1 << 16

log = logging.getLogger(__name__)


@asynccontextmanager
async def registry_once_there(
    url: str, shared: SharedAdapters, *, listener: socket.socket, max_connections: int, drain: Drain
) -> AsyncIterator[Registry | None]:
    """The registry, however long its database is away; None when the process is to end before.

    Raises ConfigError for a database of a newer version, and for a file that can't be written.
    """
    opening = asyncio.create_task(_open(url, shared))
    leaving = asyncio.create_task(drain.wanted())
    try:
        done, _ = await asyncio.wait((opening, leaving), timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            async with _refusing(listener, max_connections):
                await asyncio.wait((opening, leaving), return_when=asyncio.FIRST_COMPLETED)
        yield opening.result() if opening.done() else None
    finally:
        opening.cancel()
        leaving.cancel()
        await asyncio.wait((opening, leaving))
        if not opening.cancelled() and opening.exception() is None:
            await opening.result().close()


async def _open(url: str, shared: SharedAdapters) -> Registry:
    backoff = Backoff(_FIRST_BACKOFF_S, _MAX_BACKOFF_S, reset_after_s=_MAX_BACKOFF_S)
    told = None
    while True:
        try:
            registry = await Registry.open(url, shared=shared)
        except RegistryUnavailable as error:
            if str(error) != told:
                log.warning("requests are refused until the registry can be read: %s", error)
                told = str(error)
        else:
            if told:
                log.info("the registry is there")
            return registry
        await asyncio.sleep(backoff.after(0.0))


@asynccontextmanager
async def _refusing(listener: socket.socket, max_connections: int) -> AsyncIterator[None]:
    """Answers on the listener, which stays open: who connects from now on may still be served by what comes next."""
    num_cut = Counter[Cut]()  # there are no metrics yet
    server = http_server(_refuse, num_cut, max_body_bytes=_MAX_BODY_BYTES, max_connections=max_connections)
    serving = asyncio.create_task(server.serve(sockets=[listener.dup()]))
    notify(READY)  # whoever started this process could not help it by starting it again
    try:
        yield
    finally:
        server.should_exit = True
        await asyncio.wait((serving,))
        serving.result()


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["path"] == "/health":
        await JSONResponse({"status": "ok"})(scope, receive, send)
        return
    message = "not ready: the registry of adapters and keys can't be read yet; the frontend's log says why"
    await answer_of(RegistryUnavailable(message))(scope, receive, send)
