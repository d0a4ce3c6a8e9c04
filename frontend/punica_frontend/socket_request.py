"""One request of a websocket, from the frame that asked for it to its last."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence

from punica_frontend.answering import Answering
from punica_frontend.caller import Caller
from punica_frontend.generation import Generator
from punica_frontend.live_request import Backlog
from punica_frontend.socket_frames import ServerFrame
from punica_frontend.socket_shapes import Shape
from punica_serve.errors import PunicaError
from punica_serve.protocol import FinishReason

log = logging.getLogger(__name__)


class SocketRequest:
    """Stands in line for the socket's writer, once at a time, while there is a frame to send."""

    def __init__(self, request_id: str, shape: Shape, line_up: Callable[["SocketRequest"], None]) -> None:
        """``line_up`` puts it at the end of the line."""
        self.request_id = request_id
        #: Until it is over, it has not begun everything that it asks for.
        self.starting: asyncio.Task[None] | None = None
        #: Its last frame has been given out.
        self.is_over = False
        self._shape = shape
        self._line_up = line_up
        self._answerings: list[Answering] = []
        self._num_open = 0
        #: Answerings that have something to take, each once.
        self._ready: deque[int] = deque()
        self._is_in_line = False
        #: The last frame, where the cluster does not give it.
        self._last: ServerFrame | None = None

    async def start(self, generator: Generator, caller: Caller, backlog: Backlog) -> None:
        """Begins all that it asks for. Raises what is wrong with it, and then it has to fail."""
        plans = await self._shape.plans(caller)
        self._num_open = len(plans)
        for index, plan in enumerate(plans):
            self._answerings.append(await generator.start(plan, self._when_ready(index), backlog))

    def next_frames(self) -> Sequence[ServerFrame]:
        """For the writer, when its turn has come. Nothing more once it is over."""
        self._is_in_line = False
        if self.is_over:
            return ()
        if self._last is not None:
            self.is_over = True
            return (self._last,)
        frames = self._take()
        if self._ready and not self.is_over:
            self._stand_in_line()
        return frames

    def fail(self, error: Exception) -> None:
        self._last = self._end("error", error)
        self._stand_in_line()

    def cancel(self) -> None:
        """Ends it for its client, who gets a last frame."""
        self._last = self._end("cancelled")
        self._stand_in_line()
        self.close()

    def close(self) -> None:
        """Cancels what goes on. May be called again."""
        if self.starting:
            self.starting.cancel()
        for answering in self._answerings:
            answering.close()

    def _when_ready(self, index: int) -> Callable[[], None]:
        def stand_in_line() -> None:
            self._ready.append(index)
            self._stand_in_line()

        return stand_in_line

    def _stand_in_line(self) -> None:
        if not self._is_in_line:
            self._is_in_line = True
            self._line_up(self)

    def _take(self) -> Sequence[ServerFrame]:
        index = self._ready.popleft()
        try:
            frame = self._answerings[index].take()
        except Exception as error:
            self.is_over = True
            return (self._end("error", error),)
        self._num_open -= frame.finish_reason is not None
        self.is_over = self._num_open == 0
        if frame.finish_reason and not self.is_over:
            # Or tokens behind a stop string would line it up again. The last is closed once its frame is sent.
            self._answerings[index].close()
        return self._shape.frames(index, frame, num_tokens=self._num_tokens, is_last=self.is_over)

    @property
    def _num_tokens(self) -> int:
        return sum(answering.num_tokens for answering in self._answerings)

    def _end(self, reason: FinishReason, error: Exception | None = None) -> ServerFrame:
        if error and not isinstance(error, PunicaError):
            log.error("request %r of a websocket failed", self.request_id, exc_info=error)
        num_prompt_tokens = self._answerings[0].num_prompt_tokens if self._answerings else 0
        return self._shape.end(reason, error, num_prompt_tokens=num_prompt_tokens, num_tokens=self._num_tokens)
