"""What runs while a frontend serves, and in which order it ends."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Coroutine, Sequence
from typing import Any

import uvicorn

from punica_frontend.admission import Admission
from punica_frontend.scheduler_client import WireSchedulerClient
from punica_serve.process import Drain

log = logging.getLogger(__name__)

#: For the last words to requests that are cancelled at the end.
LAST_WORDS_TIMEOUT_S = 1.0


async def run_server(
    server: uvicorn.Server,
    listener: socket.socket,
    client: WireSchedulerClient,
    admission: Admission,
    drain: Drain,
    background: Sequence[Coroutine[Any, Any, None]],
) -> None:
    """Serves and keeps the link to the scheduler until one of them ends, or the drain does, or the caller cancels.

    The link goes first: then every request ends with an error of its own, and none holds the server up. What runs in
    the ``background`` goes last, and ends all by failing.
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
            async with asyncio.timeout(LAST_WORDS_TIMEOUT_S):
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
    """Returns once a drain was asked for and the last request is through; its deadline is the caller's."""
    await drain.wanted()
    log.info("taking no new requests; those under way have %g s to finish", drain.timeout_s)
    admission.close()
    await admission.empty()
