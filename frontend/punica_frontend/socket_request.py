"""One request of a websocket, from the frame that asked for it to its last."""

import asyncio
import logging
from collections.abc import Callable

from punica_frontend.answering import Answering
from punica_frontend.answers import Frame, usage
from punica_frontend.errors import error_object
from punica_serve.errors import PunicaError
from punica_serve.protocol import FinishReason

log = logging.getLogger(__name__)


class SocketRequest:
    """Stands in line for the socket's writer, once at a time, while there is a frame to send."""

    def __init__(self, request_id: str, line_up: Callable[["SocketRequest"], None]) -> None:
        """``line_up`` puts it at the end of the line."""
        self.request_id = request_id
        #: Until then it has no answering.
        self.starting: asyncio.Task[None] | None = None
        self.answering: Answering | None = None
        self._line_up = line_up
        self._is_in_line = False
        #: The last frame, where the cluster does not give it.
        self._last: Frame | None = None
        self._is_over = False

    def stand_in_line(self) -> None:
        if not self._is_in_line:
            self._is_in_line = True
            self._line_up(self)

    def next_frame(self) -> Frame | None:
        """For the writer, when its turn has come. None once the last has been given out."""
        self._is_in_line = False
        if self._is_over:
            return None
        frame = self._last or self._take()
        self._is_over = frame.finish_reason is not None
        return frame

    def fail(self, error: Exception) -> None:
        self._end("error", error)

    def cancel(self) -> None:
        """Ends it for its client, who gets a last frame."""
        self._end("cancelled")
        self.close()

    def close(self) -> None:
        """Cancels what goes on. May be called again."""
        if self.starting:
            self.starting.cancel()
        if self.answering:
            self.answering.close()

    def _take(self) -> Frame:
        assert self.answering is not None
        try:
            return self.answering.take()
        except Exception as error:
            return self._end("error", error)

    def _end(self, reason: FinishReason, error: Exception | None = None) -> Frame:
        if error and not isinstance(error, PunicaError):
            log.error("request %r of a websocket failed", self.request_id, exc_info=error)
        answering = self.answering
        num_prompt_tokens, num_tokens = (answering.num_prompt_tokens, answering.num_tokens) if answering else (0, 0)
        self._last = Frame(
            self.request_id,
            num_tokens,
            finish_reason=reason,
            usage=usage(num_prompt_tokens, num_tokens),
            error=error_object(error) if error else None,
        )
        self.stand_in_line()
        return self._last
