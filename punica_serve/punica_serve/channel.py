"""One open link between two processes, over a websocket: messages out, messages in, until it ends.

What is sent within one turn of the event loop leaves in one frame, an array of messages, for a frame costs its ends as
much as a hundred tokens. Where frames would follow each other within LINGER_S, messages that ``may_wait`` are held back
for so long: on a quiet link a token leaves at once, and on a busy one it travels in company.

Either end says Heartbeat when it has had nothing else to say. Whatever arrives is a sign of life, and a peer that gives
none for too long is cut off: it is frozen, or gone without a word. One that is merely busy is not.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterator
from typing import Any, Self

from websockets.asyncio.connection import Connection
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode

from punica_serve.config import LinksConfig
from punica_serve.errors import ProtocolError
from punica_serve.protocol import MAX_FRAME_BYTES, MAX_QUEUED_BYTES, Decoder, Heartbeat, Message, encode, join

#: Steps take 10 ms and more, so tokens arrive no later to the eye.
LINGER_S = 0.002
#: Messages are joined up to so many bytes, as a long frame holds up what comes behind it.
MAX_JOINED_BYTES = 64 << 10
#: After so much has been received, in one frame or in many, the event loop gets a turn: thousands of requests that are
#: added again at once, or a flood of small ones, must not keep other links waiting, or their peers would seem silent.
MAX_TURN_BYTES = 4 << 10

#: For what is queued to leave, and then for the closing handshake.
CLOSE_TIMEOUT_S = 1.0

#: An array's header, when it is short.
_HEADER_BYTES = 1


class Channel:
    """Sends any message, and iterates over those of ``union`` that arrive until the link ends.

    An async context manager: it is open inside, and closed with nothing left behind outside.
    """

    def __init__(self, socket: Connection, union: Any, links: LinksConfig) -> None:
        self._socket = socket
        self._links = links
        self._decode = Decoder(union)
        self._received: Iterator[Any] = iter(())
        #: Received since the event loop was given its last turn.
        self._num_turn_bytes = 0
        self._outgoing: deque[bytes] = deque()
        #: Of the outgoing messages, and of the frame that is on its way out.
        self.num_queued_bytes = 0
        self._may_leave = asyncio.Event()
        #: Sets _may_leave, by the loop's clock, for what is held back.
        self._lingering: asyncio.TimerHandle | None = None
        self._last_frame_at = 0.0
        self._is_open = True
        self._has_sent = self._has_heard = False
        self._cut_reason: str | None = None
        self._close_reason = ""
        #: Cuts the link, once it has been ended, if the peer does not take what is left.
        self._last_call: asyncio.TimerHandle | None = None
        self._writer: asyncio.Task[None] | None = None
        self._watch: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._writer = asyncio.create_task(self._write())
        self._watch = asyncio.create_task(self._keep_alive())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def send(self, message: Message, *, may_wait: bool = False) -> None:
        """Queues a message, without ever waiting. On a link that has ended it is dropped.

        Messages leave in order; one that ``may_wait`` does so for up to LINGER_S, to share a frame with others. Cuts
        the link when the peer reads so slowly that MAX_QUEUED_BYTES wait. Raises ProtocolError for a message beyond
        MAX_FRAME_BYTES; the link then goes on.
        """
        if not self._is_open:
            return
        encoded = encode(message)
        if len(encoded) > MAX_FRAME_BYTES - _HEADER_BYTES:
            raise ProtocolError(
                f"a {type(message).__name__} of {len(encoded)} bytes does not fit a frame of {MAX_FRAME_BYTES}"
            )
        self.num_queued_bytes += len(encoded)
        self._outgoing.append(encoded)
        if self.num_queued_bytes > MAX_QUEUED_BYTES:
            self._cut(f"the peer reads too slowly: {self.num_queued_bytes} bytes wait for it")
        elif not may_wait:
            self._may_leave.set()
        elif self._lingering is None:
            self._linger()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        """The next message; the end of the link ends the iteration. Raises ProtocolError for a broken frame."""
        while True:
            for message in self._received:
                if type(message) is not Heartbeat:
                    return message
            if self._num_turn_bytes > MAX_TURN_BYTES:
                self._num_turn_bytes = 0
                await asyncio.sleep(0)
            try:
                frame = await self._socket.recv(decode=False)
            except ConnectionClosed:
                raise StopAsyncIteration from None
            self._has_heard = True
            self._num_turn_bytes += len(frame)
            self._received = iter(self._decode.joined(frame))

    async def receive(self, timeout_s: float) -> Any:
        """The next message. Raises ProtocolError when the link ends or the time is up first."""
        try:
            async with asyncio.timeout(timeout_s):
                return await anext(self)
        except TimeoutError:
            raise ProtocolError(f"the peer said nothing for {timeout_s:g} s") from None
        except StopAsyncIteration:
            raise ProtocolError(f"the link ended too early: {self.end_reason}") from None

    @property
    def end_reason(self) -> str:
        """Why the link ended, in words for a log line."""
        if self._cut_reason is not None:
            return self._cut_reason
        if self._socket.close_code is None:
            return "it has not ended"
        if self._socket.close_code == CloseCode.ABNORMAL_CLOSURE:
            return "the connection broke"
        return f"closed with code {self._socket.close_code} {self._socket.close_reason}".rstrip()

    def end(self, reason: str = "") -> None:
        """Lets what is queued leave, then closes, without waiting for it: the iteration ends at both ends.

        What takes longer than CLOSE_TIMEOUT_S twice is cut.
        """
        if self._is_open:
            self._close_reason = _close_reason(reason)
            loop = asyncio.get_running_loop()
            self._last_call = loop.call_later(2 * CLOSE_TIMEOUT_S, self._socket.transport.abort)
        self._is_open = False
        self._may_leave.set()

    async def close(self, reason: str = "") -> None:
        """As ``end``, and waits until it is done."""
        assert self._writer is not None and self._watch is not None, "a channel is open inside its context only"
        self.end(reason)
        self._watch.cancel()
        try:
            await asyncio.wait([self._writer], timeout=2 * CLOSE_TIMEOUT_S)
        finally:
            self._socket.transport.abort()
            if self._last_call is not None:
                self._last_call.cancel()
            self._writer.cancel()
            await asyncio.wait([self._writer, self._watch])
            await self._socket.wait_closed()

    def _cut(self, reason: str) -> None:
        self._is_open = False
        self._cut_reason = reason
        self._socket.transport.abort()

    def _linger(self) -> None:
        """Holds back what waits until LINGER_S after the frame before; that may be now."""
        loop = asyncio.get_running_loop()
        leaves_at = self._last_frame_at + LINGER_S
        if leaves_at <= loop.time():
            self._may_leave.set()
        else:
            self._lingering = loop.call_at(leaves_at, self._may_leave.set)

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(ConnectionClosed):
            while self._is_open or self._outgoing:
                await self._may_leave.wait()
                self._may_leave.clear()
                if self._lingering is not None:
                    self._lingering.cancel()
                    self._lingering = None
                while self._outgoing:
                    parts = self._take_for_a_frame()
                    self._last_frame_at = loop.time()
                    await self._socket.send(join(parts))
                    self.num_queued_bytes -= sum(map(len, parts))
                    self._has_sent = True
        self._is_open = False
        await self._socket.close(CloseCode.NORMAL_CLOSURE, self._close_reason)

    def _take_for_a_frame(self) -> list[bytes]:
        """What goes together; there is something. A message too long to be joined goes alone."""
        parts = [self._outgoing.popleft()]
        num_bytes = len(parts[0])
        while self._outgoing and (num_bytes := num_bytes + len(self._outgoing[0])) <= MAX_JOINED_BYTES:
            parts.append(self._outgoing.popleft())
        return parts

    async def _keep_alive(self) -> None:
        """Says that we live where nothing else does, and cuts off a peer that has been silent for too long.

        Silence is counted in turns of this loop, not by a clock: a process that stood still itself has heard nothing
        because it did not listen, and that is at most one turn.
        """
        num_silent = 0
        while self._is_open:
            await asyncio.sleep(self._links.heartbeat_s)
            num_silent = 0 if self._has_heard else num_silent + 1
            if num_silent * self._links.heartbeat_s >= self._links.silence_s:
                self._cut(f"the peer has said nothing for {self._links.silence_s:g} s")
            elif not self._has_sent and not self.num_queued_bytes:
                self.send(Heartbeat())
            self._has_sent = self._has_heard = False


def _close_reason(reason: str) -> str:
    """As much of it as a close frame holds: 123 bytes of UTF-8."""
    return reason.encode()[:123].decode(errors="ignore")
