"""Encoded messages on their way out of a channel: which share a frame, and when it may leave. Does no input or output.

When a third frame would follow two others within LINGER_S, messages that may wait do so for the end of that time: on a
quiet link a token leaves at once, also behind an acknowledgement, and on a busy one it shares a frame, because a frame
costs both ends as much as a hundred tokens.
"""

from collections import deque

#: A step takes 10 ms or more, so nobody sees the delay.
LINGER_S = 0.002
#: Messages are joined up to this size, because a long frame delays the messages behind it.
MAX_JOINED_BYTES = 64 << 10


class OutgoingMessages:
    """A queue of encoded messages, which leave in order."""

    def __init__(self) -> None:
        self._messages: deque[bytes] = deque()
        #: Size of those that are queued.
        self.num_bytes = 0
        #: When the newest frame was taken, and the one before it.
        self._last_frame_at = self._earlier_frame_at = 0.0

    def __bool__(self) -> bool:
        return bool(self._messages)

    def add(self, message: bytes) -> None:
        self._messages.append(message)
        self.num_bytes += len(message)

    @property
    def lingers_until(self) -> float:
        """When messages that may wait leave: LINGER_S after the newest frame but one. Mostly it is past."""
        return self._earlier_frame_at + LINGER_S

    def take_frame(self, now: float) -> list[bytes]:
        """Takes the messages of the next frame; at least one is queued. A message too long to be joined goes alone."""
        taken = [self._messages.popleft()]
        num_bytes = len(taken[0])
        while self._messages and num_bytes + len(self._messages[0]) <= MAX_JOINED_BYTES:
            taken.append(self._messages.popleft())
            num_bytes += len(taken[-1])
        self.num_bytes -= num_bytes
        self._earlier_frame_at, self._last_frame_at = self._last_frame_at, now
        return taken

    def clear(self) -> None:
        self._messages.clear()
        self.num_bytes = 0
