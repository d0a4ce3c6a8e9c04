import inspect

import msgspec
import pytest

from punica_serve import protocol
from punica_serve.errors import ProtocolError
from punica_serve.protocol import (
    AdapterRef,
    AssignmentId,
    Decoder,
    Request,
    SamplingParams,
    StartRequest,
    StepReport,
    StepToken,
    TokenLogprobs,
    encode,
)

REQUEST = Request("r", 17, (1, 2), SamplingParams(seed=(1 << 64) - 1), AdapterRef("d", "u", 3, {"q_proj": 4}), (5,))


def test_messages_survive_the_wire() -> None:
    start = StartRequest("gpu", 1, AssignmentId(1 << 60, 2), REQUEST)
    assert Decoder(protocol.SchedulerToRunner)(encode(start)) == start
    token = StepToken(AssignmentId(1, 2), 0, 7, TokenLogprobs(-0.5, (7, 3), (-0.5, -1.5)))
    report = StepReport("gpu", 0, 1, 1, (token,), (), 9, 1, 0, 1, 0.25, ("d",))
    assert Decoder(protocol.RunnerToScheduler)(encode(report)) == report


def test_every_message_belongs_to_a_direction() -> None:
    unions = (
        protocol.FrontendToScheduler,
        protocol.SchedulerToFrontend,
        protocol.RunnerToScheduler,
        protocol.SchedulerToRunner,
        protocol.SupervisorToWorker,
        protocol.WorkerToSupervisor,
    )
    members = {member for union in unions for member in union.__args__}
    messages = {
        value
        for value in vars(protocol).values()
        if inspect.isclass(value) and issubclass(value, protocol.Message) and value is not protocol.Message
    }
    assert members == messages


@pytest.mark.parametrize(
    "frame",
    [b"", b"\x00", b"\xff\xff", msgspec.msgpack.encode(["Unknown", 1]), msgspec.msgpack.encode(["StartRequest", 5])],
)
def test_anything_else_is_a_protocol_error(frame: bytes) -> None:
    with pytest.raises(ProtocolError, match="no message of this direction"):
        Decoder(protocol.SchedulerToRunner)(frame)


def test_a_message_of_the_other_direction_is_refused() -> None:
    with pytest.raises(ProtocolError):
        Decoder(protocol.FrontendToScheduler)(encode(protocol.Welcome((1, 0), 5)))


def test_fields_that_a_newer_peer_adds_are_skipped() -> None:
    newer = msgspec.msgpack.encode(["CancelRequest", "r", "added later"])
    assert Decoder(protocol.FrontendToScheduler)(newer) == protocol.CancelRequest("r")


def test_token_counts() -> None:
    assert REQUEST.num_tokens == 3
    assert REQUEST.max_num_tokens == 2 + 16
