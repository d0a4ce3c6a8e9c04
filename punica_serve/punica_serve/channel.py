"""One open link between two processes, over a websocket: messages out, messages in, until it ends.

What is sent within one turn of the event loop leaves in one frame, an array of messages, for a frame costs its ends as
much as a hundred tokens. Where frames would follow each other within LINGER_S, messages that ``may_wait`` are held back
for so long: on a quiet link a token leaves at once, and on a busy one it travels in company.

What arrives is handed over in the socket's reading callback, with no queue and no task's turn between.

Either end says Heartbeat when it has had nothing else to say. Whatever arrives is a sign of life, and a peer that gives
none for too long is cut off: it is frozen, or gone without a word. One that is merely busy is not.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Self

from websockets.frames import CloseCode

from punica_serve.config import LinksConfig
from punica_serve.errors import ProtocolError
from punica_serve.frame_socket import FrameSocket
from punica_serve.protocol import MAX_FRAME_BYTES, MAX_QUEUED_BYTES, Decoder, Heartbeat, Message, encode, join

#: Steps take 10 ms and more, so tokens arrive no later to the eye.
LINGER_S = 0.002
#: Messages are joined up to so many bytes, as a long frame holds up what comes behind it.
MAX_JOINED_BYTES = 64 << 10
#: After so much has been handed over, in one frame or in many, the event loop gets a turn: thousands of requests that
#: are added again at once, or a flood of small ones, must not keep other links waiting: their peers would seem silent.
MAX_TURN_BYTES = 4 << 10

#: For what is queued to leave, and then for the closing handshake.
CLOSE_TIMEOUT_S = 1.0

#: What a process closes its links with that stops on purpose.
_IN_ORDER = (CloseCode.NORMAL_CLOSURE, CloseCode.GOING_AWAY)

#: An array's header, when it is short.
_HEADER_BYTES = 1


class Channel:
    """Sends any message, and hands over those of ``union`` that arrive until the link ends.

    An async context manager: it is open inside, and closed with nothing left behind outside.
    """

    def __init__(self, socket: FrameSocket, union: Any, links: LinksConfig) -> None:
        self._socket = socket
        self._links = links
        self._loop = asyncio.get_running_loop()
        self._decode = Decoder(union)
        #: Gets what arrives. None: nobody does now, and it waits.
        self._handle: Callable[[Any], object] | None = None
        #: Set when that has ended.
        self._handed: asyncio.Future[None] = self._loop.create_future()
        #: Of the frame that was taken last, what has not been handed over.
        self._received: Iterator[Any] = iter(())
        #: The event loop's next turn goes on with what has come.
        self._goes_on = False
        self._outgoing: deque[bytes] = deque()
        #: Of the outgoing messages.
        self.num_queued_bytes = 0
        #: When they leave, once that is known: soon, or by the loop's clock.
        self._leaving: asyncio.Handle | None = None
        self._lingers = False
        self._last_frame_at = 0.0
        #: Takes what is to be sent.
        self._is_open = True
        #: Wants what arrives. One that this end has ended or cut does not.
        self._listens = True
        self._has_sent = self._has_heard = False
        self._cut_reason: str | None = None
        self._close_reason = ""
        #: What was queued has left, and nothing more will.
        self._may_close = asyncio.Event()
        #: Cuts the link, once it has been ended, if the peer does not take what is left.
        self._last_call: asyncio.TimerHandle | None = None
        self._closer: asyncio.Task[None] | None = None
        self._watch: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._socket.on_frames = self._hear
        self._socket.on_writable = self._write
        self._socket.on_end = self._note_end
        if self._socket.has_ended:
            self._note_end()
        self._closer = asyncio.create_task(self._close_when_empty())
        self._watch = asyncio.create_task(self._keep_alive())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # -------------------------------------------------------------- out

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
        elif self._leaving is None or (self._lingers and not may_wait):
            self._leave(may_wait)

    def _leave(self, may_wait: bool) -> None:
        """Has what is queued leave in the loop's next turn; what may wait, not before LINGER_S after the last frame."""
        if self._leaving is not None:
            self._leaving.cancel()
        leaves_at = self._last_frame_at + LINGER_S
        self._lingers = may_wait and leaves_at > self._loop.time()
        self._leaving = (
            self._loop.call_at(leaves_at, self._write) if self._lingers else self._loop.call_soon(self._write)
        )

    def _write(self) -> None:
        """Lets out what is queued, as far as the socket takes it; it calls again when it takes more."""
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None
        while self._outgoing and not self._socket.paused:
            parts = self._take_for_a_frame()
            self.num_queued_bytes -= sum(map(len, parts))
            self._socket.write(join(parts))
            self._last_frame_at = self._loop.time()
            self._has_sent = True
        if not self._outgoing and not self._is_open:
            self._may_close.set()

    def _take_for_a_frame(self) -> list[bytes]:
        """What goes together; there is something. A message too long to be joined goes alone."""
        parts = [self._outgoing.popleft()]
        num_bytes = len(parts[0])
        while self._outgoing and (num_bytes := num_bytes + len(self._outgoing[0])) <= MAX_JOINED_BYTES:
            parts.append(self._outgoing.popleft())
        return parts

    # -------------------------------------------------------------- in

    async def serve(self, handle: Callable[[Any], object]) -> None:
        """Calls ``handle`` with each message that arrives, in order, until the link ends.

        Raises what ``handle`` raises, and ProtocolError for a broken frame; nothing is handed over after that. Nor is
        anything once this end has ended the link.
        """
        self._handle, self._handed = handle, self._loop.create_future()
        self._hand_over()
        try:
            await self._handed
        finally:
            self._handle = None

    async def receive(self, timeout_s: float) -> Any:
        """The next message, before ``serve``. Raises ProtocolError when the link ends or the time is up first."""
        messages: list[Any] = []

        def take(message: Any) -> None:
            messages.append(message)
            self._stop_handing()

        try:
            async with asyncio.timeout(timeout_s):
                await self.serve(take)
        except TimeoutError:
            raise ProtocolError(f"the peer said nothing for {timeout_s:g} s") from None
        if not messages:
            raise ProtocolError(f"the link ended too early: {self.end_reason}")
        return messages[0]

    def _hear(self) -> None:
        """The socket has frames."""
        self._has_heard = True
        if not self._goes_on:
            self._hand_over()

    def _hand_over(self) -> None:
        """As much of what has come as a turn of the event loop may take. An error is ``serve``'s to raise."""
        self._goes_on = False
        num_turn_bytes = 0
        try:
            while self._handle is not None:
                for message in self._received:
                    if type(message) is not Heartbeat and self._listens:
                        self._handle(message)
                        if self._handle is None:
                            return
                if num_turn_bytes > MAX_TURN_BYTES:
                    self._goes_on = True
                    self._loop.call_soon(self._hand_over)
                    return
                frame = self._socket.take()
                if frame is None:
                    break
                num_turn_bytes += len(frame)
                if self._listens:
                    self._received = iter(self._decode.joined(frame))
        except Exception as error:
            self._stop_handing(error)
        if self._socket.has_ended:
            self._stop_handing()

    def _stop_handing(self, error: Exception | None = None) -> None:
        self._handle = None
        if self._handed.done():
            return
        if error is None:
            self._handed.set_result(None)
        else:
            self._handed.set_exception(error)

    # -------------------------------------------------------------- the end

    @property
    def was_closed(self) -> bool:
        """Whether it ended in order, as when a process stops on purpose, and was neither cut nor broken."""
        return self._cut_reason is None and self._socket.close_code in _IN_ORDER

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
        """Lets what is queued leave, then closes, without waiting for it: ``serve`` ends at both ends.

        What takes longer than CLOSE_TIMEOUT_S twice is cut.
        """
        if self._is_open:
            self._close_reason = _close_reason(reason)
            self._last_call = self._loop.call_later(2 * CLOSE_TIMEOUT_S, self._socket.transport.abort)
        self._is_open = self._listens = False
        self._write()

    async def close(self, reason: str = "") -> None:
        """As ``end``, and waits until it is done."""
        assert self._closer is not None and self._watch is not None, "a channel is open inside its context only"
        self.end(reason)
        self._watch.cancel()
        try:
            await asyncio.wait([self._closer], timeout=2 * CLOSE_TIMEOUT_S)
        finally:
            self._socket.transport.abort()
            if self._last_call is not None:
                self._last_call.cancel()
            self._closer.cancel()
            await asyncio.wait([self._closer, self._watch])
            await self._socket.wait_closed()

    def _cut(self, reason: str) -> None:
        self._is_open = self._listens = False
        self._cut_reason = reason
        self._socket.transport.abort()

    async def _close_when_empty(self) -> None:
        await self._may_close.wait()
        await self._socket.close(CloseCode.NORMAL_CLOSURE, self._close_reason)

    def _note_end(self) -> None:
        """The socket is no more: what is queued goes nowhere; what has come is still handed over."""
        self._is_open = False
        self._outgoing.clear()
        self._write()
        self._hear()

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
