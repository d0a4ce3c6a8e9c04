"""Starts and stops everything that runs while a frontend serves."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Coroutine, Sequence
from typing import Any

import uvicorn

from punica_frontend.generation.admission import Admission
from punica_frontend.scheduler_link.wire_scheduler_client import WireSchedulerClient
from punica_serve.process.run import Drain

log = logging.getLogger(__name__)

#: How long cancelled requests have to send their final errors.
EXIT_GRACE_S = 1.0


async def run_server(
    server: uvicorn.Server,
    listener: socket.socket,
    client: WireSchedulerClient,
    admission: Admission,
    drain: Drain,
    background: Sequence[Coroutine[Any, Any, None]],
) -> None:
    """Serves and keeps the scheduler link until either ends, the drain ends, or the caller cancels.

    The link stops first, so that every request ends with its own error and none delays the server. ``background`` tasks
    are cancelled last. If one fails, everything stops.
    """
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    linking = asyncio.create_task(client.run())
    draining = asyncio.create_task(_drain(admission, drain))
    others = [asyncio.create_task(work) for work in background]
    try:
        done, _ = await asyncio.wait((serving, linking, draining, *others), return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        admission.close()
        await _cancel(draining, linking)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(EXIT_GRACE_S):
                await admission.empty()
        server.should_exit = True
        await asyncio.wait((serving,))
        await _cancel(*others)


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


async def _drain(admission: Admission, drain: Drain) -> None:
    """Returns once a drain was requested and the last request has finished. The caller enforces the deadline."""
    await drain.wanted()
    log.info("draining: no new requests; running requests have %g s to finish", drain.timeout_s)
    admission.close()
    await admission.empty()
