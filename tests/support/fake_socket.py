"""The part of a socket that a channel uses, in memory, and channels over it. The test is the peer."""

import asyncio
from collections.abc import Callable
from typing import Any

from websockets.frames import CloseCode

from punica_serve.config.links_section import LinksConfig
from punica_serve.links.channel import Channel
from punica_serve.protocol import Decoder, FrontendToScheduler, SchedulerToFrontend, encode, join
from waits import until


def _nobody() -> None:
    pass


class FakeSocket:
    """Decodes what is sent as messages from a frontend to the scheduler."""

    def __init__(self) -> None:
        self.close_code: int | None = None
        self.close_reason = ""
        #: The messages of each frame that was sent.
        self.sent: list[list[Any]] = []
        #: While it is set, nothing may be written.
        self.is_paused = False
        self.has_ended = False
        self.on_frames: Callable[[], None] = _nobody
        self.on_writable: Callable[[], None] = _nobody
        self.on_end: Callable[[], None] = _nobody
        self._incoming: list[bytes] = []
        self._ended = asyncio.Event()
        self._decode = Decoder(FrontendToScheduler)

    def arrive(self, *frames: bytes) -> None:
        self._incoming += frames
        self.on_frames()

    def take(self) -> bytes | None:
        return self._incoming.pop(0) if self._incoming else None

    def write(self, frame: bytes) -> None:
        assert not self.is_paused, "nobody may write to a socket that takes nothing"
        if not self.has_ended:
            self.sent.append(self._decode.joined(frame))

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False
        self.on_writable()

    def abort(self) -> None:
        self.end(CloseCode.ABNORMAL_CLOSURE, "")

    async def close(self, code: int, reason: str) -> None:
        self.end(code, reason)

    async def wait_closed(self) -> None:
        await self._ended.wait()

    def end(self, code: int, reason: str) -> None:
        if self.close_code is None:
            self.close_code, self.close_reason = code, reason
            asyncio.get_running_loop().call_soon(self._lose)

    def _lose(self) -> None:
        self.has_ended = True
        self._ended.set()
        self.on_end()

    @property
    def messages(self) -> list[Any]:
        return [message for frame in self.sent for message in frame]


def opened(socket: FakeSocket, *, heartbeat_s: float, silence_s: float) -> Channel:
    links = LinksConfig(heartbeat_s=heartbeat_s, silence_s=silence_s)
    return Channel(socket, SchedulerToFrontend, links)  # type: ignore[arg-type]


def joined(*messages: Any) -> bytes:
    return join([encode(message) for message in messages])


async def rest_of(channel: Channel) -> list[Any]:
    """All messages to the end of the link."""
    messages: list[Any] = []
    await channel.serve(messages.append)
    return messages


async def until_sent(socket: FakeSocket, num_messages: int) -> None:
    await until(lambda: len(socket.messages) >= num_messages)
