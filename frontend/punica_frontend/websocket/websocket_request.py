"""One request of a websocket, from the frame that starts it to its last frame."""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any

from punica_frontend.api.caller import Caller
from punica_frontend.generation.direct_output import DirectOutput
from punica_frontend.generation.generator import Generator
from punica_frontend.generation.reader_queue import ReaderQueue
from punica_frontend.generation.response_stream import ResponseStream
from punica_frontend.http.body_pieces import PieceWriter
from punica_frontend.scheduler_link.live_request import Backlog
from punica_frontend.websocket.frame_types import ServerFrame
from punica_frontend.websocket.openai_frames import Shape
from punica_serve.errors import PunicaError
from punica_serve.protocol import FinishReason

log = logging.getLogger(__name__)


class WebSocketRequest:
    """Waits in the socket's write queue, at most once, while it has a frame to send."""

    def __init__(self, answer_id: str, shape: Shape, queue: ReaderQueue[Any], pieces: PieceWriter) -> None:
        """``answer_id`` is the client's id.

        ``queue`` is the writer's; while the writer waits for it, single tokens go to ``pieces``.
        """
        self.answer_id = answer_id
        #: The task that starts its streams. Until it ends, not all of them have begun.
        self.starting: asyncio.Task[None] | None = None
        #: Whether its last frame has been taken.
        self.is_over = False
        self._shape = shape
        self._queue = queue
        self._pieces = pieces
        self._streams: list[ResponseStream] = []
        self._num_open = 0
        #: Indices of streams with output to take, each once.
        self._ready: deque[int] = deque()
        self._is_queued = False
        #: The last frame of a failed or cancelled request.
        self._last: ServerFrame | None = None

    async def start(self, generator: Generator, caller: Caller, backlog: Backlog) -> None:
        """Starts all its streams. Raises the request's errors; the caller then calls ``fail``."""
        plans = await self._shape.plans(caller)
        self._num_open = len(plans)
        direct = DirectOutput(self._shape.encoders, self._queue)
        direct.open(self._pieces)
        for index, plan in enumerate(plans):
            stream = await generator.start(plan, partial(self._enqueue_stream, index), backlog)
            self._streams.append(stream)
            stream.write_tokens(index, direct)

    def next_frames(self) -> Sequence[ServerFrame]:
        """Returns the frames for the writer's turn; none once it is over."""
        self._is_queued = False
        if self.is_over:
            return ()
        if self._last is not None:
            self.is_over = True
            return (self._last,)
        frames = self._take()
        if self._ready and not self.is_over:
            self._enqueue()
        return frames

    def fail(self, error: Exception) -> None:
        """Ends it with an error frame."""
        self._last = self._end("error", error)
        self._enqueue()

    def cancel(self) -> None:
        """Ends it at the client's wish, with a last frame."""
        self._last = self._end("cancelled")
        self._enqueue()
        self.close()

    def close(self) -> None:
        """Cancels what still runs, and forgets it: its socket may wait for the garbage collector. Idempotent."""
        if self.starting:
            self.starting.cancel()
        for stream in self._streams:
            stream.close()
        self._streams.clear()

    def _enqueue_stream(self, index: int) -> None:
        self._ready.append(index)
        self._enqueue()

    def _enqueue(self) -> None:
        if not self._is_queued:
            self._is_queued = True
            self._queue.put(self)

    def _take(self) -> Sequence[ServerFrame]:
        index = self._ready.popleft()
        try:
            frame = self._streams[index].take()
        except Exception as error:
            self.is_over = True
            return (self._end("error", error),)
        self._num_open -= frame.finish_reason is not None
        self.is_over = self._num_open == 0
        if frame.finish_reason and not self.is_over:
            # Otherwise tokens after a stop string would queue it again. The last stream is closed once its frame is
            # sent.
            self._streams[index].close()
        return self._shape.frames(index, frame, num_tokens=self._num_tokens, is_last=self.is_over)

    @property
    def _num_tokens(self) -> int:
        return sum(stream.num_tokens for stream in self._streams)

    def _end(self, reason: FinishReason, error: Exception | None = None) -> ServerFrame:
        if error and not isinstance(error, PunicaError):
            log.error("request %r of a websocket failed", self.answer_id, exc_info=error)
        num_prompt_tokens = self._streams[0].num_prompt_tokens if self._streams else 0
        return self._shape.end(reason, error, num_prompt_tokens=num_prompt_tokens, num_tokens=self._num_tokens)
