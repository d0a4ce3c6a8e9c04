"""How evenly tenants' tokens come, while others do what they may.

    python token_gaps.py '{"url": ..., "headers": ..., "request": ..., "num_streams": ...}'

A process of its own watches the streams: neither the load that a test makes nor its garbage collector delays that.
It says that it is ready, watches until its standard input is closed, and writes the seconds between tokens as JSON.
"""

import asyncio
import contextlib
import gc
import itertools
import json
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
from websockets.asyncio.client import connect

from waits import DEADLINE_S, until

#: Begins again and again; each answer is as long as the demo's context allows with room to spare.
REQUEST = {"prompt": "42", "ignore_eos": True, "max_tokens": 1_000, "temperature": 0.8, "seed": 7}


class TokenGaps:
    """Seconds between frames of websockets that always have a request under way."""

    def __init__(self) -> None:
        self.gaps_s: list[float] = []

    @property
    def longest_s(self) -> float:
        return max(self.gaps_s)

    def lasting_s(self, share: float) -> float:
        """This ``share`` of the time is in gaps no longer than that. A stall weighs as much as it lasts."""
        gaps_s = np.sort(self.gaps_s)
        return float(gaps_s[np.searchsorted(np.cumsum(gaps_s), share * gaps_s.sum())])


@asynccontextmanager
async def watched_tokens(
    stream_url: str,
    headers: Mapping[str, str] | None = None,
    request: Mapping[str, Any] = REQUEST,
    *,
    num_streams: int = 1,
    into: TokenGaps | None = None,
) -> AsyncIterator[TokenGaps]:
    """Watches the tokens of some streams while the body runs; afterwards the gaps are there, added to ``into``'s.

    Raises AssertionError if a stream ended; pytest shows why.
    """
    gaps = into or TokenGaps()
    asked = {"url": stream_url, "headers": headers, "request": request, "num_streams": num_streams}
    watcher = await asyncio.create_subprocess_exec(
        *(sys.executable, __file__, json.dumps(asked)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=64 << 20,
    )
    assert watcher.stdin and watcher.stdout
    try:
        async with asyncio.timeout(DEADLINE_S):
            assert await watcher.stdout.readline(), "no tokens come"
        yield gaps
        async with asyncio.timeout(DEADLINE_S):
            watcher.stdin.close()
            answer = await watcher.stdout.readline()
        assert answer, "a watched stream ended"
        gaps.gaps_s += json.loads(answer)
    finally:
        with contextlib.suppress(ProcessLookupError):
            watcher.kill()
        await watcher.wait()


async def _watch(asked: Mapping[str, Any]) -> None:
    closed = asyncio.Event()
    gaps_s: list[float] = []
    async with asyncio.TaskGroup() as tasks:
        streams = [tasks.create_task(_watch_stream(asked, number, gaps_s)) for number in range(asked["num_streams"])]
        await until(lambda: len(gaps_s) > 10 * len(streams), "tokens come")
        gaps_s.clear()
        _say("ready")
        asyncio.get_running_loop().add_reader(sys.stdin, closed.set)
        await closed.wait()
        _say(json.dumps(gaps_s))
        for stream in streams:
            stream.cancel()


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def _watch_stream(asked: Mapping[str, Any], number: int, gaps_s: list[float]) -> None:
    request = {**asked["request"], "seed": number}
    async with connect(asked["url"], proxy=None, additional_headers=asked["headers"]) as socket:
        for round_number in itertools.count():
            await socket.send(json.dumps({"op": "generate", "request_id": f"{round_number}", **request}))
            last_s, finish_reason = None, None
            while finish_reason is None:
                frame = json.loads(await socket.recv())
                assert frame["error"] is None, frame
                now_s, finish_reason = time.monotonic(), frame["finish_reason"]
                if last_s is not None:
                    gaps_s.append(now_s - last_s)
                last_s = now_s


if __name__ == "__main__":
    gc.disable()
    asyncio.run(_watch(json.loads(sys.argv[1])))
