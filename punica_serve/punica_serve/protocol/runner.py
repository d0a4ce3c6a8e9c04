"""Between the scheduler, a runner and its workers."""

from punica_serve.protocol.base import EndReason, LoraGroup, Message, Struct, TokenId
from punica_serve.protocol.request import AdapterRef, AssignmentId, Request, TokenLogprobs, WireError, check_columns

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
    From step to step they are the same, each at its next position, so they are named once; see ``RowNames``.
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
    token_ids: tuple[TokenId, ...] = ()
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
    #: 0: ``counters`` and ``positions`` are given. n: this is the n-th report with tokens after the one that gave them,
    #: of the same rows, each n positions further.
    num_repeats: int = 0

    def __post_init__(self) -> None:
        if not self.num_repeats:
            check_columns(self.counters, self.positions, self.token_ids, self.logprobs)
        elif self.counters or self.positions or (self.logprobs and len(self.logprobs) != len(self.token_ids)):
            raise ValueError("the columns of a report without names are not of one length")


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


class AdaptersCached(Message, frozen=True):
    """Adapters came into, or left, the host memory of a worker, or (``gpu_uuid`` None) the disk of the runner.

    A worker that joins, or is Reset, tells all that it has as come; a runner does so after each handshake.
    """

    gpu_uuid: str | None
    came: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


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


class Warm(Message, frozen=True):
    """Bring this adapter to host memory, and to the GPU as far as there is room; see WarmAdapter for ``pin``."""

    gpu_uuid: str
    adapter: AdapterRef
    pin: bool | None = None


class Forget(Message, frozen=True):
    """To a runner, and from it to all its workers: drop this adapter from every tier once no request uses it."""

    digest: str


class Ping(Message, frozen=True):
    """Supervisor to worker, at equal intervals: answered by a Pong at once, whatever the step loop does."""

    number: int


class Reset(Message, frozen=True):
    """Supervisor to worker, after a lost link: drop all assignments; later reports carry this epoch."""

    epoch: int


class AdapterFetched(Message, frozen=True):
    """The answer to a FetchAdapter: exactly one of ``folder`` and ``error`` is given."""

    digest: str
    #: On this host's disk. It stays there as long as the worker lives, or until a Forget.
    folder: str | None = None
    error: WireError | None = None
    #: Another try, here or on another host, will do no better.
    is_permanent: bool = False


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


class FetchAdapter(Message, frozen=True):
    """Bring the files of this adapter to the host's disk: once for all the host's workers."""

    adapter: AdapterRef
