"""Every message between processes: frontend <-> scheduler <-> runner over websockets, runner <-> worker over pipes.

A message is a frozen struct, packed by msgpack as an array that starts with its tag. There is one union and one decoder
per direction, so an unknown tag or a wrong type fails at the edge with a ProtocolError. Within a major version, fields
are only added, at the end and with a default. A pipe's frame is a message; a websocket's is an array of messages, those
that were there to be sent together.

What there is one of for each token travels in *columns*: tuples of equal length, a row for each token. So a token costs
a few integers at either end and no object of its own.

Words: a *position* is the index of a generated token in its stream, from 0. A request's *tokens* are prompt plus
generated. Times are integers of nanoseconds since 1970 and end in ``_ns``.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from punica_serve.errors import ProtocolError, PunicaError

#: (major, minor). Peers whose majors differ refuse each other and name both versions.
PROTOCOL_VERSION = (2, 0)

#: A token id on the wire.
MAX_TOKEN_BYTES = 5
#: The longest frame: a request of three million tokens.
MAX_FRAME_BYTES = 16 << 20
#: Frames that wait for a slow peer; beyond it the link is cut. A frontend that comes back adds all its requests at
#: once: 10,000 of them (the longest queue by default) with 4,000 tokens of 5 bytes are 200 MB.
MAX_QUEUED_BYTES = 256 << 20

#: Why a request ends by itself.
EndReason = Literal["stop", "length"]
#: Why it ends at all.
FinishReason = Literal["stop", "length", "cancelled", "error"]

#: The four groups of projections whose LoRA weights share pages, in the order in which a layer runs them.
LoraGroup = Literal["qkv", "o", "gate_up", "down"]


class Struct(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """Base of the parts of messages."""


class Message(Struct, frozen=True, array_like=True, omit_defaults=True, tag=True):
    """Base of the messages themselves: the tag is the class name."""


def _check_columns(
    names: tuple[int, ...],
    positions: tuple[int, ...],
    token_ids: tuple[int, ...],
    logprobs: tuple["TokenLogprobs | None", ...],
) -> None:
    """Raises ValueError, which a decoder tells as a ProtocolError, for columns that are not of one table."""
    num_rows = len(names)
    if len(positions) != num_rows or len(token_ids) != num_rows or (logprobs and len(logprobs) != num_rows):
        raise ValueError("the columns of a message are not of one length")


# ------------------------------------------------------------------ what a request is


class AdapterRef(Struct, frozen=True):
    """An adapter as everything behind the frontend knows it: by its bytes, never by its name."""

    #: sha256(sha256(adapter_config.json) || sha256(adapter_model.safetensors)), hexadecimal.
    digest: str
    #: Where the bytes are: the path of a PEFT folder, or `dummy:` and a number for random ones.
    uri: str
    #: Size of the weights file.
    num_bytes: int
    #: Highest rank over all layers, for each linear module the adapter touches: {"q_proj": 16, ...}.
    ranks: dict[str, int]


class SamplingParams(Struct, frozen=True):
    """How the next token is drawn, and when there are enough. The defaults draw greedily, at most 16 tokens."""

    #: 0 is greedy.
    temperature: float = 0.0
    top_p: float = 1.0
    #: 0 keeps all.
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    #: 64 bits. Whoever takes a request in (frontend, or the engine's own API) gives it a random one in place of None.
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    #: No end of sequence and no stop token id before this many generated tokens.
    min_tokens: int = 0
    max_tokens: int = 16
    #: None: no logprobs. n: the drawn token's, and those of the n most likely tokens.
    logprobs: int | None = None

    def end_ids(self, eos_token_ids: Iterable[int]) -> frozenset[int]:
        """The tokens that end the request, of a model with these end-of-sequence tokens. They have no text."""
        return frozenset(self.stop_token_ids if self.ignore_eos else (*eos_token_ids, *self.stop_token_ids))


class Request(Struct, frozen=True):
    """All there is to know to run a request from where it is: new, evicted, moved and recovered ones look the same."""

    #: Unique in the cluster; made by the frontend.
    request_id: str
    #: Set once by the frontend. First come, first served goes by (arrival_ns, request_id).
    arrival_ns: int
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    adapter: AdapterRef | None = None
    #: Tokens generated so far, by earlier assignments.
    generated_ids: tuple[int, ...] = ()
    #: Whose request it is, set by the frontend: the key of a fair queue.
    tenant: str | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_ids) + len(self.generated_ids)

    @property
    def max_num_tokens(self) -> int:
        """Tokens of prompt and the longest answer the request may get."""
        return len(self.prompt_ids) + self.sampling.max_tokens


class AssignmentId(NamedTuple):
    """One stay of one request on one GPU. Tokens name it alone, so late tokens of an old stay are told apart."""

    #: The scheduler's start time: a restarted scheduler never reuses an id.
    incarnation: int
    counter: int


class TokenLogprobs(Struct, frozen=True):
    """Natural logarithms of the model's probabilities, before penalties and temperature."""

    logprob: float
    top_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


class WireError(Struct, frozen=True):
    """A PunicaError on the wire: its ``code``, ``message`` and ``param``."""

    code: str
    message: str
    param: str | None = None

    @classmethod
    def of(cls, error: PunicaError) -> "WireError":
        return cls(error.code, error.message, error.param)


# ------------------------------------------------------------------ handshake


class FrontendHello(Message, frozen=True):
    """First frame of a frontend. It then adds all the requests that it owns, again if it has dialled before."""

    version: tuple[int, int]
    token: str
    frontend_id: str


class RunnerHello(Message, frozen=True):
    """First frame of a runner, whose GPUs join one by one as they are ready. It always reports empty working sets."""

    version: tuple[int, int]
    token: str
    runner_id: str
    #: Of this process: tells one runner that dials again from two that were given the same id.
    instance: str


class Welcome(Message, frozen=True):
    """The scheduler's answer to a hello. A runner that sees another incarnation drops all assignments."""

    version: tuple[int, int]
    incarnation: int


class Refused(Message, frozen=True):
    """The scheduler's answer to a hello that it can't accept; it then closes."""

    error: WireError


# ------------------------------------------------------------------ both ways, on every websocket


class Heartbeat(Message, frozen=True):
    """Sent by an end that has had nothing else to send. It says that the sender lives, and nothing more."""


# ------------------------------------------------------------------ frontend -> scheduler


class AddRequest(Message, frozen=True):
    """A new request, or again one that the frontend owns, with the tokens it holds."""

    #: The frontend's own number of the request, which deliveries name. A frontend process never uses one twice.
    handle: int
    request: Request


class CancelRequest(Message, frozen=True):
    request_id: str


class GetCluster(Message, frozen=True):
    """A unary call: the answer is a ClusterReply with the same call_id."""

    call_id: int


class DrainGpu(Message, frozen=True):
    """A unary call: place nothing new on this GPU and move what runs there, or (``drain`` false) use it again.

    The answer is a DrainReply with the same call_id.
    """

    call_id: int
    gpu_uuid: str
    drain: bool


# ------------------------------------------------------------------ scheduler -> frontend


class Ending(Struct, frozen=True):
    """The end of a request: nothing follows for its handle."""

    handle: int
    #: Tokens generated in all, so that a frontend which holds others knows that something is wrong.
    num_tokens: int
    reason: FinishReason
    #: Given exactly when the reason is "error".
    error: WireError | None = None


class Deliveries(Message, frozen=True):
    """Tokens of a frontend's requests, in columns and in order, and the ends that come after them."""

    handles: tuple[int, ...] = ()
    positions: tuple[int, ...] = ()
    token_ids: tuple[int, ...] = ()
    #: Empty when no row has any.
    logprobs: tuple[TokenLogprobs | None, ...] = ()
    endings: tuple[Ending, ...] = ()

    def __post_init__(self) -> None:
        _check_columns(self.handles, self.positions, self.token_ids, self.logprobs)


class Limits(Message, frozen=True):
    """What the cluster can hold, sent after Welcome and whenever it changes."""

    num_gpus: int
    #: Tokens of the longest request the largest KvCache can hold; None while no GPU has joined.
    max_request_tokens: int | None = None


# ------------------------------------------------------------------ runner -> scheduler


class GpuInfo(Struct, frozen=True):
    """What a worker tells of its device once it is ready."""

    uuid: str
    device: str
    max_batch_size: int
    #: Tokens in a page of the KvCache.
    page_size: int
    num_kv_pages: int
    #: Pages of the LoRA pool in each group; a page holds LORA_PAGE_RANKS rank rows.
    num_lora_pages: dict[LoraGroup, int]


class GpuJoined(Message, frozen=True):
    """A worker is ready, with an empty working set."""

    gpu: GpuInfo


class GpuLost(Message, frozen=True):
    """A worker died or was given up. All its assignments are gone."""

    gpu_uuid: str
    reason: str


class StepReport(Message, frozen=True, kw_only=True):
    """What one step of one GPU did, or, with no tokens, what applying commands while idle changed.

    The tokens are in columns. An assignment is named by its counter alone: a worker has those of one incarnation only.
    """

    gpu_uuid: str
    #: Incremented by every Reset; the supervisor drops reports of an earlier epoch.
    epoch: int
    #: Model invocations since the worker started.
    step: int
    #: The highest ``seq`` of the commands applied before this step.
    applied_seq: int
    #: Of all assignments that are named here; 0 from a worker that has never had one.
    incarnation: int = 0
    counters: tuple[int, ...] = ()
    positions: tuple[int, ...] = ()
    token_ids: tuple[int, ...] = ()
    #: Empty when no row has any.
    logprobs: tuple[TokenLogprobs | None, ...] = ()
    #: Assignments that ended by themselves after these tokens, and why.
    finished: tuple[tuple[int, EndReason], ...] = ()
    #: Assignments that the worker left out of the step because a page was missing.
    starved: tuple[int, ...] = ()
    free_kv_pages: int
    #: Requests in the newest invocation; 0 when idle.
    batch_size: int
    num_prefill_tokens: int
    #: Different adapters among them.
    num_adapters: int
    duration_s: float
    #: Digests of the adapters in the LoRA pool; None when unchanged since the last report.
    resident: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        _check_columns(self.counters, self.positions, self.token_ids, self.logprobs)


class AssignmentsFailed(Message, frozen=True):
    """The worker could not go on with these assignments, for one reason, and has dropped them."""

    gpu_uuid: str
    epoch: int
    applied_seq: int
    assignments: tuple[AssignmentId, ...]
    #: True: no other GPU will do better (an adapter's bytes are wrong). False: worth another try.
    permanent: bool
    error: WireError


class DrainRunner(Message, frozen=True):
    """The runner is to stop: place nothing new on its GPUs, and move what runs there."""


# ------------------------------------------------------------------ scheduler -> runner


class RunnerDrained(Message, frozen=True):
    """Nothing runs or is assigned on the runner's GPUs any more."""


# ------------------------------------------------------------------ scheduler -> runner -> worker


class StartRequest(Message, frozen=True):
    """Run this request from where it is: prefill prompt and generated, then go on."""

    gpu_uuid: str
    #: Counts the commands to this GPU since it joined, from 1.
    seq: int
    assignment: AssignmentId
    request: Request


class StopRequest(Message, frozen=True):
    """Drop this assignment between two steps and free its pages. Unknown ids are ignored."""

    gpu_uuid: str
    seq: int
    assignment: AssignmentId


class Ping(Message, frozen=True):
    """Supervisor to worker, at equal intervals: answered by a Pong at once, whatever the step loop does."""

    number: int


class Reset(Message, frozen=True):
    """Supervisor to worker, after a lost link: drop all assignments; later reports carry this epoch."""

    epoch: int


# ------------------------------------------------------------------ worker -> supervisor


class WorkerReady(Message, frozen=True):
    """The worker's handshake: model loaded, kernels compiled, memory taken."""

    gpu: GpuInfo


class Pong(Message, frozen=True):
    """The answer to the Ping of this number: the process runs, and so far is its step loop."""

    number: int
    #: Of the step loop, but for those that ran nothing though a request could have run. One without requests turns too.
    num_turns: int


class WorkerFailed(Message, frozen=True):
    """The worker's last words: why it can't start or go on. ``permanent``: starting it again can't help."""

    error: WireError
    permanent: bool


# ------------------------------------------------------------------ the cluster, as people see it


class GpuSnapshot(Struct, frozen=True):
    """One GPU in /v1/cluster."""

    gpu: GpuInfo
    runner_id: str
    #: Requests placed and not stopped.
    working_set: int
    #: Requests in the newest step, and different adapters among them.
    batch_size: int
    num_adapters: int
    free_kv_pages: int
    resident_adapters: tuple[str, ...]
    steps: int
    tokens: int
    #: Nothing new is placed there, and what runs there is moved.
    is_draining: bool = False


class ScaleAdvice(Struct, frozen=True):
    """What the fleet should become."""

    num_more_gpus: int = 0
    #: Runners whose GPUs are all idle.
    releasable_runners: tuple[str, ...] = ()


class ClusterSnapshot(Struct, frozen=True):
    """The scheduler's whole view. Counters count since the incarnation began."""

    incarnation: int
    now_ns: int
    gpus: tuple[GpuSnapshot, ...]
    queue_length: int
    num_frontends: int
    num_runners: int
    #: "arrived", "finished", "cancelled", "failed", "tokens", "evictions", "migrations", "consolidations",
    #: "gpus_lost".
    counters: dict[str, int]
    advice: ScaleAdvice = ScaleAdvice()


class ClusterReply(Message, frozen=True):
    call_id: int
    cluster: ClusterSnapshot


class DrainReply(Message, frozen=True):
    """``error`` is None where the drain, or its end, has begun."""

    call_id: int
    error: WireError | None = None


# ------------------------------------------------------------------ unions and codecs, one per direction

FrontendToScheduler = FrontendHello | AddRequest | CancelRequest | GetCluster | DrainGpu | Heartbeat
SchedulerToFrontend = Welcome | Refused | Deliveries | Limits | ClusterReply | DrainReply | Heartbeat
RunnerToScheduler = RunnerHello | GpuJoined | GpuLost | StepReport | AssignmentsFailed | DrainRunner | Heartbeat
SchedulerToRunner = Welcome | Refused | StartRequest | StopRequest | RunnerDrained | Heartbeat
SupervisorToWorker = StartRequest | StopRequest | Reset | Ping
WorkerToSupervisor = WorkerReady | WorkerFailed | Pong | StepReport | AssignmentsFailed
#: What a peer may send to the scheduler before it is known what kind of peer it is.
ToScheduler = FrontendToScheduler | RunnerToScheduler

_encoder = msgspec.msgpack.Encoder()


def encode(message: Message) -> bytes:
    """A message's bytes: the frame of a pipe, or a part of a websocket's."""
    return _encoder.encode(message)


def join(encoded: Sequence[bytes]) -> bytes:
    """The websocket frame of messages that are encoded already: msgpack's array of them."""
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

    ``Decoder(SchedulerToRunner)(encoded)`` gives one of the union's messages; anything else raises ProtocolError.
    """

    def __init__(self, union: Any) -> None:
        self._one = msgspec.msgpack.Decoder(union)
        self._joined: msgspec.msgpack.Decoder[list[Any]] = msgspec.msgpack.Decoder(list[union])

    def __call__(self, encoded: bytes) -> Any:
        try:
            return self._one.decode(encoded)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _no_message(encoded, error) from error

    def joined(self, frame: bytes) -> list[Any]:
        """The messages of a websocket frame, in order."""
        try:
            return self._joined.decode(frame)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _no_message(frame, error) from error


def _no_message(frame: bytes, error: Exception) -> ProtocolError:
    return ProtocolError(f"a frame of {len(frame)} bytes is no message of this direction: {error}")
