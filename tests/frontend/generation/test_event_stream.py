import asyncio
import itertools
from collections.abc import AsyncGenerator
from typing import Any

from starlette.types import Message

from punica_frontend.generation.answers import Frame
from punica_frontend.generation.event_stream import EventStream
from waits import DEADLINE_S


class Frames:
    """An endless answer, that counts what is taken of it."""

    def __init__(self) -> None:
        self.num_taken = 0
        self.is_closed = False

    async def stream(self) -> AsyncGenerator[Frame, None]:
        try:
            for index in itertools.count():
                self.num_taken += 1
                yield Frame("r", index, (5,), "x")
        finally:
            self.is_closed = True


def no_error(error: Exception) -> object:
    raise error


async def never(*_: Any) -> Any:
    await asyncio.Event().wait()


async def send_headers_only(message: Message) -> None:
    if message["type"] == "http.response.body":
        await never()


async def test_nothing_is_taken_that_the_client_does_not_take() -> None:
    frames = Frames()
    streaming = asyncio.create_task(EventStream(frames.stream(), no_error)({"type": "http"}, never, send_headers_only))
    for _ in range(100):
        await asyncio.sleep(0)
    assert frames.num_taken == 1
    streaming.cancel()
    await asyncio.wait([streaming])
    assert frames.is_closed


async def test_a_client_that_left_ends_the_stream() -> None:
    async def leave() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        await asyncio.sleep(0)

    frames = Frames()
    async with asyncio.timeout(DEADLINE_S):
        await EventStream(frames.stream(), no_error)({"type": "http"}, leave, send)
    assert frames.is_closed or frames.num_taken == 0
