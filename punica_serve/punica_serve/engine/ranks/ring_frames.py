"""The frames of the ring: a step, as int32 words, or a command. To another host messages for itself go among them."""

import struct
from collections.abc import Sequence as Series

from punica_serve.engine.ranks.host_messages import LeaderToHost
from punica_serve.engine.ranks.rank_messages import RankCommand
from punica_serve.protocol import Decoder, Message, encode

#: A step as int32 words.
PackedStep = tuple[int, ...]

_STEP, _COMMAND, _HOST = b"step", b"cmd ", b"host"
_TAG_BYTES = 4
_WORD_BYTES = 4

_decode = Decoder(RankCommand)
_decode_host = Decoder(LeaderToHost)


def step_frame(words: Series[int]) -> bytes:
    """``words``: int32 each."""
    return struct.pack(f"<{_TAG_BYTES}s{len(words)}i", _STEP, *words)


def command_frame(command: Message) -> bytes:
    return _COMMAND + encode(command)


def host_frame(message: LeaderToHost) -> bytes:
    return _HOST + encode(message)


def read_host_frame(frame: bytes) -> LeaderToHost | RankCommand | None:
    """The message for the host itself, or the command for its ranks; None for a step. Raises ProtocolError."""
    if frame[:_TAG_BYTES] == _HOST:
        message: LeaderToHost = _decode_host(frame[_TAG_BYTES:])
        return message
    command = read_frame(frame)
    return None if isinstance(command, tuple) else command


def read_words(frame: bytes) -> PackedStep:
    """The words of a step's frame."""
    return struct.unpack_from(f"<{(len(frame) - _TAG_BYTES) // _WORD_BYTES}i", frame, _TAG_BYTES)


def read_frame(frame: bytes) -> PackedStep | RankCommand:
    """The words of a step, or a command. Raises ProtocolError."""
    if frame.startswith(_STEP):
        return read_words(frame)
    command: RankCommand = _decode(frame[_TAG_BYTES:])
    return command
