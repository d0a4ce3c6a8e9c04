"""The short way of a stream's tokens: from the scheduler's message to the connection, without waking their reader."""

from collections.abc import Callable, Mapping

from punica_frontend.http.body_pieces import PieceWriter

#: Returns the bytes of an event from a token's text and the number of generated tokens so far.
EncodeText = Callable[[str, int], bytes]


class DirectOutput:
    """Writes the events of single tokens for a reader that waits for them, once its answer has begun."""

    def __init__(self, encoders: Mapping[int, EncodeText]) -> None:
        """``encoders`` encode the tokens of plans, by index. A plan that has none yet leaves them to the reader."""
        self._encoders = encoders
        self._pieces: PieceWriter | None = None

    def open(self, pieces: PieceWriter) -> None:
        """Lets events be written."""
        self._pieces = pieces
        #: Writes an event from an ``encoder``. Looked up once: each token of a stream is written.
        self.write = pieces.write

    def encoder(self, index: int) -> EncodeText | None:
        """Returns what encodes the tokens of a plan. None: they can't be written now, and are the reader's."""
        pieces = self._pieces
        return None if pieces is None or not pieces.is_writable else self._encoders.get(index)
