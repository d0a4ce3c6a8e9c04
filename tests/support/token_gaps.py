"""How evenly a tenant's tokens come, while others do what they may."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from waits import until

#: Begins again and again; each answer is as long as the demo's context allows with room to spare.
REQUEST = {"prompt": "42", "ignore_eos": True, "max_tokens": 1_000, "temperature": 0.8, "seed": 7}


class TokenGaps:
    """Seconds between frames of one websocket that always has a request under way."""

    def __init__(self) -> None:
        self.gaps_s: list[float] = []

    @property
    def longest_s(self) -> float:
        return max(self.gaps_s)

    async def _watch(self, socket: ClientConnection, request: Mapping[str, Any]) -> None:
        number = 0
        while True:
            number += 1
            await socket.send(json.dumps({"op": "generate", "request_id": f"{number}", **request}))
            last_s, finish_reason = None, None
            while finish_reason is None:
                frame = json.loads(await socket.recv())
                assert frame["error"] is None, frame
                now_s, finish_reason = time.monotonic(), frame["finish_reason"]
                if last_s is not None:
                    self.gaps_s.append(now_s - last_s)
                last_s = now_s


@asynccontextmanager
async def watched_tokens(
    stream_url: str, headers: Mapping[str, str] | None = None, request: Mapping[str, Any] = REQUEST
) -> AsyncIterator[TokenGaps]:
    """Watches the tokens of one stream while the body runs. Raises what ended the stream, if anything did."""
    gaps = TokenGaps()
    async with connect(stream_url, proxy=None, additional_headers=headers) as socket:
        watching = asyncio.create_task(gaps._watch(socket, request))
        try:
            await until(lambda: watching.done() or len(gaps.gaps_s) > 10, "tokens come")
            yield gaps
        finally:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching
