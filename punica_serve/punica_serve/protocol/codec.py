"""The union of each direction, and the encoding of messages and frames."""

from collections.abc import Sequence
from typing import Any

import msgspec

from punica_serve.errors import ProtocolError
from punica_serve.learned_types import learned
from punica_serve.numbers import counted
from punica_serve.protocol.base import Message
from punica_serve.protocol.cluster import (
    CallReply,
    ClusterHistory,
    ClusterReply,
    GpuReply,
    HistoryReply,
    ResidencyReply,
)
from punica_serve.protocol.frontend import (
    AddRequest,
    CancelRequest,
    Deliveries,
    DrainGpu,
    ForgetAdapter,
    GetCluster,
    GetGpu,
    GetHistory,
    GetResidency,
    Limits,
    PromisesJudged,
    WarmAdapter,
)
from punica_serve.protocol.links import FrontendHello, Heartbeat, Refused, RunnerHello, Welcome
from punica_serve.protocol.runner import (
    AdapterFetched,
    AdaptersCached,
    AssignmentsFailed,
    DrainRunner,
    FetchAdapter,
    Forget,
    GpuJoined,
    GpuLost,
    Ping,
    Pong,
    Reset,
    RunnerDrained,
    StartRequest,
    StepReport,
    StopRequest,
    Warm,
    WorkerFailed,
    WorkerReady,
)

FrontendToScheduler = (
    FrontendHello
    | AddRequest
    | CancelRequest
    | GetCluster
    | GetGpu
    | GetHistory
    | DrainGpu
    | WarmAdapter
    | ForgetAdapter
    | GetResidency
    | PromisesJudged
    | Heartbeat
)
SchedulerToFrontend = (
    Welcome
    | Refused
    | Deliveries
    | Limits
    | ClusterReply
    | GpuReply
    | HistoryReply
    | ResidencyReply
    | CallReply
    | Heartbeat
)
RunnerToScheduler = (
    RunnerHello | GpuJoined | GpuLost | StepReport | AssignmentsFailed | AdaptersCached | DrainRunner | Heartbeat
)
SchedulerToRunner = Welcome | Refused | StartRequest | StopRequest | Warm | Forget | RunnerDrained | Heartbeat
SupervisorToWorker = StartRequest | StopRequest | Warm | Forget | AdapterFetched | Reset | Ping
WorkerToSupervisor = WorkerReady | WorkerFailed | Pong | StepReport | AssignmentsFailed | AdaptersCached | FetchAdapter
#: Messages that a peer may send before the scheduler knows what kind of peer it is.
ToScheduler = FrontendToScheduler | RunnerToScheduler

_encoder = msgspec.msgpack.Encoder()
_history_decoder = msgspec.msgpack.Decoder(learned(ClusterHistory))


def encode(message: Message) -> bytes:
    """A message's bytes: the frame of a pipe, or a part of a websocket's frame."""
    return _encoder.encode(message)


def encode_history(history: ClusterHistory) -> msgspec.Raw:
    """Encodes a history for a HistoryReply."""
    return msgspec.Raw(_encoder.encode(history))


def decode_history(encoded: msgspec.Raw) -> ClusterHistory:
    """Decodes the history of a HistoryReply. Raises ProtocolError for an invalid one."""
    try:
        return _history_decoder.decode(encoded)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProtocolError(f"a history of {len(bytes(encoded))} bytes is invalid: {error}") from error


def join(encoded: Sequence[bytes]) -> bytes:
    """The websocket frame of encoded messages: a msgpack array of them."""
    count = len(encoded)
    if count < 1 << 4:
        header = bytes((0x90 | count,))
    elif count < 1 << 16:
        header = b"\xdc" + count.to_bytes(2, "big")
    else:
        header = b"\xdd" + count.to_bytes(4, "big")
    return header + b"".join(encoded)


class Decoder:
    """Decodes the messages of one direction.

    ``Decoder(SchedulerToRunner)(encoded)`` returns one of the union's messages, and raises ProtocolError otherwise.
    """

    def __init__(self, union: Any) -> None:
        self._one = msgspec.msgpack.Decoder(learned(union))
        self._joined: msgspec.msgpack.Decoder[list[Any]] = msgspec.msgpack.Decoder(learned(list[union]))

    def __call__(self, encoded: bytes) -> Any:
        try:
            return self._one.decode(encoded)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _invalid_frame(encoded, error) from error

    def joined(self, frame: bytes) -> list[Any]:
        """The messages of a websocket frame, in order. Raises ProtocolError."""
        try:
            return self._joined.decode(frame)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _invalid_frame(frame, error) from error


def _invalid_frame(frame: bytes, error: Exception) -> ProtocolError:
    return ProtocolError(f"a frame of {counted(len(frame), 'byte')} is no message of this direction: {error}")
