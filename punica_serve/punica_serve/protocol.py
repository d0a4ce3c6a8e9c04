"""Every message between processes: frontend <-> scheduler <-> runner over websockets, runner <-> worker over pipes.

A message is a frozen struct, packed by msgpack as an array that starts with its tag. There is one union and one decoder
per direction, so an unknown tag or a wrong type fails at the edge with a ProtocolError. Within a major version, fields
are only added, at the end and with a default.

Words: a *position* is the index of a generated token in its stream, from 0. A request's *tokens* are prompt plus
generated. Times are integers of nanoseconds since 1970 and end in ``_ns``.
"""

from collections.abc import Iterable
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

from punica_serve.errors import ProtocolError, PunicaError

#: (major, minor). Peers whose majors differ refuse each other and name both versions.
PROTOCOL_VERSION = (1, 0)

#: A token id on the wire.
MAX_TOKEN_BYTES = 5
#: The longest message: a request of three million tokens.
MAX_FRAME_BYTES = 16 << 20
#: Frames that wait for a slow peer; beyond it the link is cut. A frontend that comes back adds all its requests at
#: once: 10,000 of them (the longest queue by default) with 4,000 tokens of 5 bytes are 200 MB.
MAX_QUEUED_BYTES = 256 << 20

FinishReason = Literal["stop", "length", "cancelled", "error"]

#: The four groups of projections whose LoRA weights share pages, in the order in which a layer runs them.
LoraGroup = Literal["qkv", "o", "gate_up", "down"]


class Struct(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """Base of the parts of messages."""


class Message(Struct, frozen=True, array_like=True, omit_defaults=True, tag=True):
    """Base of the messages themselves: the tag is the class name."""


# ------------------------------------------------------------------ what a request is


class AdapterRef(Struct, frozen=True):
    """An adapter as everything behind the frontend knows it: by its bytes, never by its name."""

    #: sha256(sha256(adapter_config.json) || sha256(adapter_model.safetensors)), hexadecimal.
    digest: str
    #: Where the bytes are: the path of a PEFT folder.
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


# ------------------------------------------------------------------ frontend -> scheduler


class AddRequest(Message, frozen=True):
    request: Request


class CancelRequest(Message, frozen=True):
    request_id: str


class GetCluster(Message, frozen=True):
    """A unary call: the answer is a ClusterReply with the same call_id."""

    call_id: int


# ------------------------------------------------------------------ scheduler -> frontend


class Delivery(Message, frozen=True):
    """Tokens of one request, from ``position`` on. With a finish_reason it is the request's last.

    finish_reason "error" comes with ``error`` and may come with no tokens.
    """

    request_id: str
    position: int
    token_ids: tuple[int, ...] = ()
    #: As many as token_ids, or empty when the request asked for none.
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    error: WireError | None = None


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


class StepToken(Struct, frozen=True):
    assignment: AssignmentId
    position: int
    token_id: int
    logprobs: TokenLogprobs | None = None


class FinishedAssignment(Struct, frozen=True):
    """The assignment ended by itself, after the tokens of the same report."""

    assignment: AssignmentId
    reason: Literal["stop", "length"]


class StepReport(Message, frozen=True):
    """What one step of one GPU did, or, with no tokens, what applying commands while idle changed."""

    gpu_uuid: str
    #: Incremented by every Reset; the supervisor drops reports of an earlier epoch.
    epoch: int
    #: Model invocations since the worker started.
    step: int
    #: The highest ``seq`` of the commands applied before this step.
    applied_seq: int
    tokens: tuple[StepToken, ...]
    finished: tuple[FinishedAssignment, ...]
    free_kv_pages: int
    #: Requests in the newest invocation; 0 when idle.
    batch_size: int
    num_prefill_tokens: int
    #: Different adapters among them.
    num_adapters: int
    duration_s: float
    #: Digests of the adapters in the LoRA pool; None when unchanged since the last report.
    resident: tuple[str, ...] | None = None
    #: Assignments that the worker left out of the step because a page was missing.
    starved: tuple[AssignmentId, ...] = ()


class AssignmentsFailed(Message, frozen=True):
    """The worker could not go on with these assignments, for one reason, and has dropped them."""

    gpu_uuid: str
    epoch: int
    applied_seq: int
    assignments: tuple[AssignmentId, ...]
    #: True: no other GPU will do better (an adapter's bytes are wrong). False: worth another try.
    permanent: bool
    error: WireError


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


class ClusterSnapshot(Struct, frozen=True):
    """The scheduler's whole view. Counters count since the incarnation began."""

    incarnation: int
    now_ns: int
    gpus: tuple[GpuSnapshot, ...]
    queue_length: int
    num_frontends: int
    num_runners: int
    #: "arrived", "finished", "cancelled", "failed", "tokens", "evictions", "migrations", "gpus_lost".
    counters: dict[str, int]


class ClusterReply(Message, frozen=True):
    call_id: int
    cluster: ClusterSnapshot


# ------------------------------------------------------------------ unions and codecs, one per direction

FrontendToScheduler = FrontendHello | AddRequest | CancelRequest | GetCluster
SchedulerToFrontend = Welcome | Refused | Delivery | Limits | ClusterReply
RunnerToScheduler = RunnerHello | GpuJoined | GpuLost | StepReport | AssignmentsFailed
SchedulerToRunner = Welcome | Refused | StartRequest | StopRequest
SupervisorToWorker = StartRequest | StopRequest | Reset | Ping
WorkerToSupervisor = WorkerReady | WorkerFailed | Pong | StepReport | AssignmentsFailed
#: What a peer may send to the scheduler before it is known what kind of peer it is.
ToScheduler = FrontendToScheduler | RunnerToScheduler

M = TypeVar("M")

_encoder = msgspec.msgpack.Encoder()


def encode(message: Message) -> bytes:
    """The frame of a message."""
    return _encoder.encode(message)


class Decoder:
    """Decodes the frames of one direction.

    ``Decoder(SchedulerToRunner)(frame)`` gives one of the union's messages; anything else raises ProtocolError.
    """

    def __init__(self, union: Any) -> None:
        self._decoder = msgspec.msgpack.Decoder(union)

    def __call__(self, frame: bytes) -> Any:
        try:
            return self._decoder.decode(frame)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ProtocolError(f"a frame of {len(frame)} bytes is no message of this direction: {error}") from error
