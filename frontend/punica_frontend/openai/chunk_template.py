"""The JSON of chunks that differ in their text and usage alone, which are nearly all. Pure."""

from collections.abc import Callable
from functools import partial

import msgspec

from punica_frontend.generation.answers import Frame
from punica_frontend.openai.stream_usage import ChunkUsage, StreamUsage

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


class ChunkTemplates:
    """The plain chunks of one stream: a template for each of its choices."""

    def __init__(self, chunk: Callable[[int, str, ChunkUsage], msgspec.Struct], usage: StreamUsage) -> None:
        """``chunk`` makes the struct of a choice, for a text and a usage."""
        self._chunk = chunk
        self._usage = usage
        self._templates: dict[int, ChunkTemplate] = {}

    def json(self, index: int, frame: Frame) -> msgspec.Raw:
        """Returns the chunk of a plain frame, encoded."""
        usage = self._usage.after(index, frame)
        template = self._templates.get(index)
        if template is None:
            template = self._templates[index] = ChunkTemplate(partial(self._chunk, index), usage)
        return template.json(frame.text, usage)
