"""The frames of the ring: a step, as int32 words, or a command. To another host messages for itself go among them."""

import numpy as np
import numpy.typing as npt

from punica_serve.engine.ranks.host_messages import LeaderToHost
from punica_serve.engine.ranks.rank_messages import RankCommand
from punica_serve.protocol import Decoder, Message, encode

Int32s = npt.NDArray[np.int32]

_STEP, _COMMAND, _HOST = b"step", b"cmd ", b"host"
_TAG_BYTES = 4

_decode = Decoder(RankCommand)
_decode_host = Decoder(LeaderToHost)


def step_frame(words: Int32s) -> bytes:
    return _STEP + words.tobytes()


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
    return None if isinstance(command, np.ndarray) else command


def read_frame(frame: bytes) -> Int32s | RankCommand:
    """The words of a step, or a command. Raises ProtocolError."""
    if frame[:_TAG_BYTES] == _STEP:
        return np.frombuffer(frame, dtype=np.int32, offset=_TAG_BYTES)
    command: RankCommand = _decode(frame[_TAG_BYTES:])
    return command
