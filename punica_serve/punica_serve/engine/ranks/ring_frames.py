"""The frames of the ring: a step, as int32 words, or a command."""

import numpy as np

from punica_serve.engine.ranks.rank_messages import RankCommand
from punica_serve.engine.ranks.step_frames import Int32s
from punica_serve.protocol import Decoder, Message, encode

_STEP, _COMMAND = b"step", b"cmd "
_TAG_BYTES = 4

_decode = Decoder(RankCommand)


def step_frame(words: Int32s) -> bytes:
    return _STEP + words.tobytes()


def command_frame(command: Message) -> bytes:
    return _COMMAND + encode(command)


def read_frame(frame: bytes) -> Int32s | RankCommand:
    """The words of a step, or a command. Raises ProtocolError."""
    if frame[:_TAG_BYTES] == _STEP:
        return np.frombuffer(frame, dtype=np.int32, offset=_TAG_BYTES)
    command: RankCommand = _decode(frame[_TAG_BYTES:])
    return command
