"""The JSON of chunks that differ in their text and usage alone, which are nearly all. Pure."""

from collections.abc import Callable

import msgspec

from punica_frontend.generation.answers import Frame
from punica_frontend.openai.stream_usage import ChunkUsage

#: Stands for the text in the model of a chunk.
_TEXT = "\x00"

_encode = msgspec.json.encode


def is_plain(frame: Frame) -> bool:
    """Whether a frame's chunk has nothing but its text."""
    return bool(frame.text) and frame.finish_reason is None and frame.logprobs is msgspec.UNSET


class ChunkTemplate:
    """Joins encoded parts: making and encoding all of a chunk's structs takes several times as long."""

    def __init__(self, chunk: Callable[[str, ChunkUsage], msgspec.Struct], usage: ChunkUsage) -> None:
        """``chunk`` makes the struct for a text and a usage, and has the text behind all that a client may have named.

        ``usage`` is that of any one chunk: the others have one too if it has one.
        """
        # A client may have named its model like the text, so the last place counts.
        self._head, _, rest = _encode(chunk(_TEXT, usage)).rpartition(_encode(_TEXT))
        self._has_usage = usage is not msgspec.UNSET
        if self._has_usage:
            self._middle, _, self._tail = rest.partition(b'"usage":' + _encode(usage))
            self._middle += b'"usage":'
        else:
            self._middle, self._tail = rest, b""

    def json(self, text: str, usage: ChunkUsage) -> msgspec.Raw:
        """Returns the chunk, encoded."""
        told = _encode(usage) if self._has_usage else b""
        return msgspec.Raw(b"".join((self._head, _encode(text), self._middle, told, self._tail)))
