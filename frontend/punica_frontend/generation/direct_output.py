"""The short way of a stream's frames: from the scheduler's message to the connection, without waking their reader."""

from collections.abc import Callable, Iterable

from punica_frontend.generation.answers import Frame
from punica_frontend.http.body_pieces import PieceWriter


class DirectOutput:
    """Writes frames for a reader that waits for them, once its answer has begun."""

    def __init__(self, encode: Callable[[int, Frame], Iterable[bytes] | None]) -> None:
        """``encode`` gives the pieces of a frame, from its plan's index; None leaves the frame to the reader."""
        self._encode = encode
        self._pieces: PieceWriter | None = None

    def open(self, pieces: PieceWriter) -> None:
        """Lets frames be written."""
        self._pieces = pieces

    @property
    def is_writable(self) -> bool:
        """Whether the connection would take a frame now."""
        return self._pieces is not None and self._pieces.is_writable

    def write(self, index: int, frame: Frame) -> bool:
        """Writes a frame if it is writable; returns whether it did, or left the frame to the reader."""
        if self._pieces is None or (pieces := self._encode(index, frame)) is None:
            return False
        for piece in pieces:
            self._pieces.write(piece)
        return True
