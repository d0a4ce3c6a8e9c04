"""The short way of a stream's tokens: from the scheduler's message to the connection, without waking their reader."""

from collections.abc import Callable

from punica_frontend.http.body_pieces import PieceWriter

#: Returns the bytes of an event from a token's text and the number of generated tokens so far.
EncodeText = Callable[[str, int], bytes]


class DirectOutput:
    """Writes the events of single tokens for a reader that waits for them, once its answer has begun."""

    def __init__(self, encoder: Callable[[int], EncodeText | None]) -> None:
        """``encoder`` gives what encodes the tokens of a plan, by its index; None leaves them to the reader for now."""
        self._encoder = encoder
        self._pieces: PieceWriter | None = None

    def open(self, pieces: PieceWriter) -> None:
        """Lets events be written."""
        self._pieces = pieces

    def encoder(self, index: int) -> EncodeText | None:
        """Returns what encodes the tokens of a plan. None: they can't be written now, and are the reader's."""
        pieces = self._pieces
        return None if pieces is None or not pieces.is_writable else self._encoder(index)

    def write(self, event: bytes) -> None:
        """Writes an event from an ``encoder``."""
        assert self._pieces is not None, "an encoder is given once it is open"
        self._pieces.write(event)
