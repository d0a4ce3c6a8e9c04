"""The JSON of chunks that differ in their text and usage alone, which are nearly all. Pure."""

from collections.abc import Callable
from functools import partial

import msgspec

from punica_frontend.generation.answers import Frame, TokenUsage
from punica_frontend.generation.direct_output import EncodeToken
from punica_frontend.generation.event_stream import EVENT_HEAD, EVENT_TAIL
from punica_frontend.openai.stream_usage import ChunkUsage, StreamUsage

#: The bytes before a chunk's JSON and behind it.
Around = tuple[bytes, bytes]
EVENT: Around = (EVENT_HEAD, EVENT_TAIL)

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

        ``usage`` is that of any one chunk. If it counts no tokens, it is that of all.
        """
        # A client may have named its model like the text, so the last place counts.
        self._head, _, self._tail = _encode(chunk(_TEXT, usage)).rpartition(_encode(_TEXT))
        self._middle = b""
        self.counts_usage = isinstance(usage, TokenUsage)
        if self.counts_usage:
            self._middle, _, self._tail = self._tail.partition(_encode(usage))

    def json(self, text: str, usage: ChunkUsage) -> bytes:
        """Returns the chunk, encoded."""
        told = _encode(usage) if self.counts_usage else b""
        return b"".join((self._head, _encode(text), self._middle, told, self._tail))

    def encoder(self, so_far: Callable[[int], ChunkUsage], around: Around) -> EncodeToken:
        """Returns what encodes chunks and what is ``around`` them.

        ``so_far`` makes the usage from the number of generated tokens.
        """
        before, behind = around
        if self.counts_usage:
            return lambda _, text, num_tokens: (
                b"".join((before, self.json(text, so_far(num_tokens)), behind)) if text else None
            )
        head, tail = before + self._head, self._tail + behind
        return lambda _, text, __: b"".join((head, _encode(text), tail)) if text else None


class ChunkTemplates:
    """The plain chunks of one stream: a template for each of its choices."""

    def __init__(
        self, chunk: Callable[[int, str, ChunkUsage], msgspec.Struct], usage: StreamUsage, around: Around
    ) -> None:
        """``chunk`` makes the struct of a choice, for a text and a usage. ``around`` it stands the same in all."""
        self._chunk = chunk
        self._usage = usage
        self._around = around
        self._templates: dict[int, ChunkTemplate] = {}
        #: Encode plain chunks with the bytes around them, from each choice's first plain chunk on.
        self.encoders: dict[int, EncodeToken] = {}

    def of(self, index: int, frame: Frame) -> msgspec.Raw:
        """Returns the chunk of a plain frame."""
        usage = self._usage.after(index, frame)
        template = self._templates.get(index)
        if template is None:
            template = self._templates[index] = ChunkTemplate(partial(self._chunk, index), usage)
            self.encoders[index] = template.encoder(partial(self._usage.so_far, index), self._around)
        return msgspec.Raw(template.json(frame.text, usage))
