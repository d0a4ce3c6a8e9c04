import inspect
from typing import Any

import msgspec
import pytest

from punica_serve import protocol
from punica_serve.errors import ProtocolError
from punica_serve.protocol import (
    AdapterRef,
    AssignmentId,
    CancelRequest,
    Decoder,
    FrontendHello,
    Request,
    RunnerHello,
    SamplingParams,
    StartRequest,
    StepReport,
    TokenLogprobs,
    encode,
    join,
)

REQUEST = Request("r", 17, (1, 2), SamplingParams(seed=(1 << 64) - 1), AdapterRef("d", "u", 3, {"q_proj": 4}), (5,))


def report(
    counters: tuple[int, ...],
    positions: tuple[int, ...],
    token_ids: tuple[int, ...],
    logprobs: tuple[TokenLogprobs | None, ...] = (),
) -> StepReport:
    return StepReport(
        gpu_uuid="gpu",
        epoch=0,
        step=1,
        applied_seq=1,
        incarnation=1 << 60,
        assignments=counters,
        positions=positions,
        token_ids=token_ids,
        logprobs=logprobs,
        finished=((2, "stop"),),
        starved=(4,),
        free_kv_pages=9,
        batch_size=1,
        num_prefill_tokens=0,
        num_adapters=1,
        duration_s=0.25,
        resident=("d",),
    )


def test_messages_survive_the_wire() -> None:
    start = StartRequest("gpu", 1, AssignmentId(1 << 60, 2), REQUEST)
    assert Decoder(protocol.SchedulerToRunner)(encode(start)) == start
    step = report((2, 3), (0, 9), (7, 8), (TokenLogprobs(-0.5, (7, 3), (-0.5, -1.5)), None))
    assert Decoder(protocol.RunnerToScheduler)(encode(step)) == step


@pytest.mark.parametrize("count", [0, 1, 15, 16, 70_000])
def test_a_frame_holds_any_number_of_messages(count: int) -> None:
    messages = [CancelRequest(str(i)) for i in range(count)]
    frame = join([encode(message) for message in messages])
    assert Decoder(protocol.FrontendToScheduler).joined(frame) == messages
    with pytest.raises(ProtocolError, match="no message of this direction"):
        Decoder(protocol.SchedulerToRunner).joined(frame + b"\x00")


@pytest.mark.parametrize("token_id", [-1, 1 << 32])
def test_a_token_id_that_does_not_fit_32_bits_is_a_protocol_error(token_id: int) -> None:
    """The scheduler keeps token ids in such an array."""
    with pytest.raises(ProtocolError, match="no message of this direction"):
        Decoder(protocol.RunnerToScheduler)(encode(report((1,), (0,), (token_id,))))


@pytest.mark.parametrize("columns", [((2,), (0, 9), (7, 8)), ((2, 3), (0, 9), (7,)), ((2, 3), (0, 9), (7, 8), (None,))])
def test_columns_of_different_lengths_are_a_protocol_error(columns: Any) -> None:
    names = ("assignments", "positions", "token_ids", "logprobs")
    fields = {**msgspec.structs.asdict(report((), (), ())), **dict(zip(names, columns, strict=False))}
    with pytest.raises(ProtocolError, match="not of one length"):
        Decoder(protocol.RunnerToScheduler)(msgspec.msgpack.encode(["StepReport", *fields.values()]))
    with pytest.raises(ProtocolError, match="not of one length"):
        Decoder(protocol.SchedulerToFrontend)(msgspec.msgpack.encode(["Deliveries", [1], [0], [5, 6]]))


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


def test_a_hello_shows_who_it_is_and_not_the_token() -> None:
    hellos = (FrontendHello((1, 0), "hunter2", "f"), RunnerHello((1, 0), "hunter2", "r", "i"))
    assert [repr(hello) for hello in hellos] == [
        "FrontendHello(version=(1, 0), frontend_id='f')",
        "RunnerHello(version=(1, 0), runner_id='r', instance='i')",
    ]


@pytest.mark.parametrize("ignore_eos", [False, True])
@pytest.mark.parametrize("stop_token_ids", [(), (5,), (2, 5)])
def test_a_request_ends_with_its_end_ids_alone(ignore_eos: bool, stop_token_ids: tuple[int, ...]) -> None:
    params, eos_token_ids = SamplingParams(ignore_eos=ignore_eos, stop_token_ids=stop_token_ids), (2, 3)
    ending = {token_id for token_id in range(8) if params.ends_with(token_id, eos_token_ids)}
    assert ending == params.end_ids(eos_token_ids)
