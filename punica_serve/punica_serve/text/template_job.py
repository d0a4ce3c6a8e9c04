"""What a process that renders chat templates is told, and answers: frames of msgpack on its pipes."""

import struct
from typing import Any

import msgspec

#: Of a frame; the length of the rest comes first, in four bytes.
MAX_FRAME_BYTES = 64 << 20

_LENGTH = struct.Struct(">I")
LENGTH_BYTES = _LENGTH.size


class TemplateJob(msgspec.Struct, frozen=True):
    """Renders a conversation through the template ``source``. Without messages it is only compiled."""

    source: str
    special_tokens: dict[str, str]
    messages: list[dict[str, Any]] | None
    add_generation_prompt: bool


class TemplateAnswer(msgspec.Struct, frozen=True):
    text: str = ""
    #: Why there is none.
    error: str | None = None


def frame(content: TemplateJob | TemplateAnswer) -> bytes:
    body = msgspec.msgpack.encode(content)
    return _LENGTH.pack(len(body)) + body


def body_bytes(head: bytes) -> int:
    """The length of what follows a frame's first bytes."""
    length: int
    (length,) = _LENGTH.unpack(head)
    return length
