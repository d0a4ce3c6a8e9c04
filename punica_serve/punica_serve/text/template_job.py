"""Messages to and from the process that renders and tokenizes prompts: msgpack frames on pipes."""

import struct
from typing import Any

import msgspec

#: Limit of a frame's size; four bytes with the length of the rest come first.
MAX_FRAME_BYTES = 64 << 20

_LENGTH = struct.Struct(">I")
LENGTH_BYTES = _LENGTH.size


class RenderJob(msgspec.Struct, frozen=True, tag=True):
    """A request to render a conversation with the template ``source``; without messages, only to compile it.

    The answer is a Text, or, for a long text, Rendered and then TokenIds.
    """

    source: str
    special_tokens: dict[str, str]
    messages: list[dict[str, Any]] | None
    add_generation_prompt: bool
    add_special_tokens: bool


class EncodeJob(msgspec.Struct, frozen=True, tag=True):
    """A request to tokenize a text that is not too long. The answer is its TokenIds."""

    text: str
    add_special_tokens: bool


class Text(msgspec.Struct, frozen=True, tag=True):
    """A prompt short enough to be tokenized in the serving process."""

    text: str


class Rendered(msgspec.Struct, frozen=True, tag=True):
    """The template is done and the prompt is being tokenized. If the process dies now, the template is not to blame."""


class TokenIds(msgspec.Struct, frozen=True, tag=True):
    ids: list[int]


class TooLong(msgspec.Struct, frozen=True, tag=True):
    """The prompt has too many characters, or too many tokens."""

    num_chars: int
    #: None if it was not tokenized.
    num_tokens: int | None = None


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The template is invalid, or refuses the messages."""

    reason: str


Job = RenderJob | EncodeJob
Answer = Text | Rendered | TokenIds | TooLong | Refused


def frame(content: Job | Answer) -> bytes:
    body = msgspec.msgpack.encode(content)
    return _LENGTH.pack(len(body)) + body


def body_bytes(head: bytes) -> int:
    """Length of a frame's body, from the frame's first bytes."""
    length: int
    (length,) = _LENGTH.unpack(head)
    return length
