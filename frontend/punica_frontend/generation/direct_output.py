"""The short way of a request's tokens: from the scheduler's message to the connection, without waking their reader."""

from collections.abc import Callable, Mapping
from typing import Any

from punica_frontend.generation.reader_queue import ReaderQueue
from punica_frontend.http.body_pieces import PieceWriter

#: Returns the bytes of an event or a message from a token's id, its text and the number of generated tokens so far.
#: None: the token shows nothing.
EncodeToken = Callable[[int, str, int], bytes | None]


class DirectOutput:
    """Writes single tokens for a reader that waits for them, once its answer has begun."""

    def __init__(self, encoders: Mapping[int, EncodeToken], queue: ReaderQueue[Any] | None = None) -> None:
        """``encoders`` encode the tokens of plans, by index. A plan that has none yet leaves them to the reader.

        ``queue`` is the reader's; by default a new one.
        """
        self._encoders = encoders
        self.queue = ReaderQueue[Any]() if queue is None else queue
        self._pieces: PieceWriter | None = None

    def open(self, pieces: PieceWriter) -> None:
        """Lets tokens be written."""
        self._pieces = pieces
        #: Writes what an ``encoder`` returned. Looked up once: each token of a stream is written.
        self.write = pieces.write

    def encoder(self, index: int) -> EncodeToken | None:
        """Returns what encodes the tokens of a plan. None: they can't be written now, and are the reader's."""
        pieces = self._pieces
        if pieces is None or not (self.queue.has_waiting_reader and pieces.is_writable):
            return None
        return self._encoders.get(index)
