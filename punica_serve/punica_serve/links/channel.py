"""One open link between two processes, over a websocket: messages out, messages in, until it ends.

Messages sent within one turn of the event loop leave in one frame, as an array, and on a busy link those that
``may_wait`` share later ones (``punica_serve.links.outgoing``).

Messages that arrive are delivered in the socket's reading callback, without a queue and without another task's turn.

An end that has had nothing else to send sends Heartbeats. Any frame is a sign of life, and a peer that sends none for
too long is cut off: it is frozen, or gone without closing. A peer that is merely busy is not cut off.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, Self

from websockets.frames import CloseCode

from punica_serve.config.links_section import LinksConfig
from punica_serve.errors import ProtocolError
from punica_serve.errors.invariants import require
from punica_serve.links.channel_state import DELIVERING, TRANSITIONS, ChannelState
from punica_serve.links.frame_stream import FrameSocket
from punica_serve.links.outgoing import OutgoingMessages
from punica_serve.protocol import MAX_FRAME_BYTES, MAX_QUEUED_BYTES, Decoder, Heartbeat, Message, encode, join

#: The event loop gets a turn after this many bytes have been delivered, in one frame or in many. Otherwise thousands of
#: requests that are added again at once, or a flood of small ones, would delay the other links, whose peers would then
#: look silent.
MAX_TURN_BYTES = 4 << 10

#: Time for queued messages to leave, and again for the closing handshake.
CLOSE_TIMEOUT_S = 1.0

#: Close codes of a process that stops on purpose.
_IN_ORDER = (CloseCode.NORMAL_CLOSURE, CloseCode.GOING_AWAY)

#: The rest of a message's work, for a later turn of the event loop.
Rest = Callable[[], None]

#: The header of a short array.
_HEADER_BYTES = 1


class Channel:
    """Sends any message, and delivers those of ``union`` that arrive until the link ends.

    An async context manager: the channel is open inside, and closed with nothing left behind outside.
    """

    def __init__(self, socket: FrameSocket, union: Any, links: LinksConfig) -> None:
        self.state = ChannelState.OPEN
        self._socket = socket
        self._links = links
        self._loop = asyncio.get_running_loop()
        self._decode = Decoder(union)
        #: Is called with each message that arrives. None: nobody serves the channel now, and messages wait.
        self._handle: Callable[[Any], Rest | None] | None = None
        #: Done when ``serve`` is to return or raise.
        self._served: asyncio.Future[None] = self._loop.create_future()
        #: Messages of the newest frame that have not been delivered.
        self._received: Iterator[Any] = iter(())
        #: The work that the handler of the newest message left for later; it comes before the next message.
        self._rest: Rest | None = None
        #: Delivery continues in a later turn of the event loop.
        self._has_turn_due = False
        self._outgoing = OutgoingMessages()
        #: The call that will write them: in the next turn, or when they have lingered.
        self._flush_call: asyncio.Handle | None = None
        self._lingers = False
        #: Whether a frame was sent or received since the last look.
        self._has_sent = self._has_received = False
        self._cut_reason: str | None = None
        self._close_reason = ""
        #: Queued messages have left, and nothing more will be sent.
        self._is_flushed = asyncio.Event()
        #: Aborts a closing link if the peer does not read what is left.
        self._close_deadline: asyncio.TimerHandle | None = None
        self._closer: asyncio.Task[None] | None = None
        self._watch: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._socket.on_frames = self._receive_frames
        self._socket.on_writable = self._flush
        self._socket.on_end = self._lose
        if self._socket.has_ended:
            self._lose()
        self._closer = asyncio.create_task(self._close_when_flushed())
        self._watch = asyncio.create_task(self._keep_alive())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _become(self, state: ChannelState) -> None:
        require(state in TRANSITIONS[self.state], f"a channel that is {self.state.value} can't become {state.value}")
        self.state = state

    # -------------------------------------------------------------- out

    @property
    def num_queued_bytes(self) -> int:
        """Size of the messages that wait to be sent."""
        return self._outgoing.num_bytes

    def send(self, message: Message, *, may_wait: bool = False) -> None:
        """Queues a message, without ever waiting. Drops it unless the channel is open.

        Messages leave in order. One that ``may_wait`` may linger, to share a frame with others. The link is cut when
        the peer reads so slowly that MAX_QUEUED_BYTES wait. Raises ProtocolError for a message beyond MAX_FRAME_BYTES,
        which does not affect the link.
        """
        if self.state is not ChannelState.OPEN:
            return
        encoded = encode(message)
        if len(encoded) > MAX_FRAME_BYTES - _HEADER_BYTES:
            raise ProtocolError(
                f"a {type(message).__name__} of {len(encoded)} bytes does not fit a frame of {MAX_FRAME_BYTES}"
            )
        self._outgoing.add(encoded)
        if self._outgoing.num_bytes > MAX_QUEUED_BYTES:
            self._cut(f"the peer reads too slowly: {self._outgoing.num_bytes} bytes wait for it")
        elif self._flush_call is None or (self._lingers and not may_wait):
            self._schedule_flush(may_wait)

    def _schedule_flush(self, may_wait: bool) -> None:
        """Writes queued messages in the loop's next turn or, if they may wait, when they have lingered."""
        if self._flush_call is not None:
            self._flush_call.cancel()
        flush_at = self._outgoing.lingers_until
        self._lingers = may_wait and flush_at > self._loop.time()
        self._flush_call = (
            self._loop.call_at(flush_at, self._flush) if self._lingers else self._loop.call_soon(self._flush)
        )

    def _flush(self) -> None:
        """Writes queued messages until the socket is full. The socket calls again when it takes more."""
        if self._flush_call is not None:
            self._flush_call.cancel()
            self._flush_call = None
        while self._outgoing and not self._socket.is_paused:
            self._socket.write(join(self._outgoing.take_frame(self._loop.time())))
            self._has_sent = True
        if not self._outgoing and self.state is not ChannelState.OPEN:
            self._is_flushed.set()

    # -------------------------------------------------------------- in

    async def serve(self, handle: Callable[[Any], Rest | None]) -> None:
        """Calls ``handle`` with each message that arrives, in order, until the link ends.

        ``handle`` may return a rest, which is called before the next message, once tasks that the handler woke have run
        and their output has left.
        Raises errors of ``handle``, and ProtocolError for a broken frame. Nothing is delivered after an error, or once
        this end has closed the link.
        """
        self._handle, self._served = handle, self._loop.create_future()
        self._deliver()
        try:
            await self._served
        finally:
            self._handle = self._rest = None

    async def receive(self, timeout_s: float) -> Any:
        """The next message, before ``serve``. Raises ProtocolError if the link ends or the time is up first."""
        messages: list[Any] = []

        def take(message: Any) -> None:
            messages.append(message)
            self._stop_serving()

        try:
            async with asyncio.timeout(timeout_s):
                await self.serve(take)
        except TimeoutError:
            raise ProtocolError(f"the peer sent nothing for {timeout_s:g} s") from None
        if not messages:
            raise ProtocolError(f"the link ended too early: {self.end_reason}")
        return messages[0]

    def _receive_frames(self) -> None:
        """The socket has frames."""
        self._has_received = True
        if not self._has_turn_due:
            self._deliver()

    def _deliver(self) -> None:
        """Delivers received messages, up to MAX_TURN_BYTES in one turn of the event loop. ``serve`` raises errors."""
        self._has_turn_due = False
        num_turn_bytes = 0
        try:
            if self._rest is not None:
                rest, self._rest = self._rest, None
                rest()
            while self._handle is not None:
                for message in self._received:
                    if type(message) is not Heartbeat and self.state in DELIVERING:
                        self._rest = self._handle(message)
                        if self._handle is None:
                            return
                        if self._rest is not None:
                            self._has_turn_due = True
                            # Tasks write in the next turn, and that leaves at its end.
                            self._loop.call_soon(self._loop.call_soon, self._deliver)
                            return
                if num_turn_bytes > MAX_TURN_BYTES:
                    self._has_turn_due = True
                    self._loop.call_soon(self._deliver)
                    return
                frame = self._socket.take()
                if frame is None:
                    break
                num_turn_bytes += len(frame)
                if self.state in DELIVERING:
                    self._received = iter(self._decode.joined(frame))
        except Exception as error:
            self._stop_serving(error)
        if self._socket.has_ended:
            self._stop_serving()

    def _stop_serving(self, error: Exception | None = None) -> None:
        self._handle = None
        if self._served.done():
            return
        if error is None:
            self._served.set_result(None)
        else:
            self._served.set_exception(error)

    # -------------------------------------------------------------- the end

    @property
    def was_closed(self) -> bool:
        """Whether the link ended in order, as when a process stops on purpose, and was neither cut nor broken."""
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
        """Closes the link once queued messages have left, without waiting for it: ``serve`` ends at both ends.

        A peer that takes longer than CLOSE_TIMEOUT_S twice is cut off.
        """
        if self.state is ChannelState.OPEN:
            self._become(ChannelState.CLOSING)
            self._close_reason = _close_reason(reason)
            self._close_deadline = self._loop.call_later(2 * CLOSE_TIMEOUT_S, self._socket.abort)
        elif self.state is ChannelState.DISCONNECTED:
            self._become(ChannelState.CLOSED)
        self._flush()

    async def close(self, reason: str = "") -> None:
        """Ends the channel and waits until that is done."""
        assert self._closer is not None and self._watch is not None, "a channel is open inside its context only"
        self.end(reason)
        self._watch.cancel()
        try:
            await asyncio.wait([self._closer], timeout=2 * CLOSE_TIMEOUT_S)
        finally:
            self._socket.abort()
            if self._close_deadline is not None:
                self._close_deadline.cancel()
            self._closer.cancel()
            await asyncio.wait([self._closer, self._watch])
            await self._socket.wait_closed()

    def _cut(self, reason: str) -> None:
        self._become(ChannelState.CUT)
        self._cut_reason = reason
        self._socket.abort()

    async def _close_when_flushed(self) -> None:
        await self._is_flushed.wait()
        await self._socket.close(CloseCode.NORMAL_CLOSURE, self._close_reason)

    def _lose(self) -> None:
        """The socket has ended: drops queued messages, and delivers the rest of those that had arrived."""
        is_open = self.state is ChannelState.OPEN
        self._become(ChannelState.DISCONNECTED if is_open else ChannelState.CLOSED)
        self._outgoing.clear()
        self._flush()
        self._receive_frames()

    async def _keep_alive(self) -> None:
        """Sends heartbeats when nothing else is sent, and cuts off a peer that has been silent for too long.

        Silence is counted in turns of this loop, not by a clock. If this process itself was stopped, it received
        nothing because it did not listen, and that counts as one turn at most.
        """
        num_silent = 0
        while True:
            await asyncio.sleep(self._links.heartbeat_s)
            if self.state is not ChannelState.OPEN:
                return
            num_silent = 0 if self._has_received else num_silent + 1
            if num_silent * self._links.heartbeat_s >= self._links.silence_s:
                self._cut(f"the peer has sent nothing for {self._links.silence_s:g} s")
            elif not self._has_sent and not self._outgoing:
                self.send(Heartbeat())
            self._has_sent = self._has_received = False


def _close_reason(reason: str) -> str:
    """The part of ``reason`` that fits a close frame: 123 bytes of UTF-8."""
    return reason.encode()[:123].decode(errors="ignore")
