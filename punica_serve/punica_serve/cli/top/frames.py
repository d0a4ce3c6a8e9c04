"""The frames of /v1/cluster/watch, with reconnects."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from typing import Any

from websockets.exceptions import ConnectionClosed

from punica_serve.errors import ClusterUnavailable
from punica_serve.links.backoff import Backoff
from punica_serve.links.dial import dial

FIRST_WAIT_S, HIGHEST_WAIT_S = 0.2, 5.0

Frame = dict[str, Any]


async def watched(url: str, key: str | None, per_s: float) -> AsyncGenerator[Frame]:
    """All frames. A lost frontend yields a frame that says so; reconnecting is tried forever.

    Raises what ``dial`` raises as long as no connection has succeeded, and whenever a frontend refuses, since a retry
    would not help.
    """
    backoff = Backoff(FIRST_WAIT_S, HIGHEST_WAIT_S, reset_after_s=HIGHEST_WAIT_S)
    was_there = False
    while True:
        began_s = time.monotonic()
        try:
            async with await dial(url, f"/v1/cluster/watch?per_s={per_s:g}", key) as socket:
                began_s, was_there = time.monotonic(), True
                async for text in socket:
                    yield json.loads(text)
            reason = f"the frontend at {url} closed the connection"
        except ConnectionClosed:
            reason = f"the connection to the frontend at {url} was lost"
        except ClusterUnavailable as error:
            if not was_there:
                raise
            reason = error.message
        yield {"type": "unavailable", "error": {"message": f"{reason}; reconnecting"}}
        await asyncio.sleep(backoff.after(time.monotonic() - began_s))
