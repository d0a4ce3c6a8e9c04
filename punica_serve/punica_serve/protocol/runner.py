"""Messages between the scheduler, a runner and its workers."""

from typing import Annotated

from msgspec import Meta
from msgspec.structs import force_setattr

from punica_serve.protocol.base import EndReason, LoraGroup, Message, PrefixScope, Struct, TokenId
from punica_serve.protocol.request import AdapterRef, AssignmentId, Request, TokenLogprobs, WireError, check_columns

# ------------------------------------------------------------------ runner -> scheduler


#: The device of a worker that only keeps accounts.
SIMULATED_DEVICE = "simulated"
#: Devices of a group, which serve one copy of a model together.
MAX_RANKS = 64


class PrefixCaching(Struct, frozen=True):
    """How a worker shares pages of its KvCache between requests that begin alike."""

    #: Digest of the base model as it is served; pages of another model or data type are never shared.
    model: str
    #: Who shares: the requests of one tenant, or those of all.
    scope: PrefixScope = "tenant"


class KvWindow(Struct, frozen=True):
    """Every layer of a worker's model has a sliding window: pages of the KvCache behind the largest are given back."""

    #: Tokens that a row sees at most, itself among them.
    num_tokens: Annotated[int, Meta(ge=1)]
    #: Tokens of a request that one step computes at most, whose pages it holds beside those of the window.
    chunk_tokens: Annotated[int, Meta(ge=1)]


class GpuInfo(Struct, frozen=True):
    """A worker's description of its device, once it is ready."""

    uuid: str
    device: str
    max_batch_size: int
    #: Tokens in a page of the KvCache.
    page_size: int
    num_kv_pages: int
    #: Pages of the LoRA pool in each group; a page holds LORA_PAGE_RANKS rank rows.
    num_lora_pages: dict[LoraGroup, int]
    #: For people: RUNNER/INDEX, by the device's place in runner.devices. A restarted worker has the same name and, on
    #: a GPU, the same UUID.
    name: str = ""
    #: The device as its driver names it, "cpu" or "simulated"; see `PerformanceProfile.device`.
    device_name: str = ""
    #: None: requests share no pages.
    prefix_caching: PrefixCaching | None = None
    #: Requests that are prefilled in one step at most.
    max_prefills: int = 1
    #: The limit on the batch size; see ``performance.auto_batch``. "max_batch_size": the config.
    batch_limit: str = "max_batch_size"
    #: UUIDs of a group's devices, by rank: the first is ``uuid``. Empty: there is no group.
    ranks: Annotated[tuple[str, ...], Meta(max_length=MAX_RANKS)] = ()
    #: None: a request keeps all its pages to its end.
    window: KvWindow | None = None

    @property
    def rank_uuids(self) -> tuple[str, ...]:
        """UUIDs of all devices of the worker."""
        return self.ranks or (self.uuid,)

    def __post_init__(self) -> None:
        """A device without a runner is called by its UUID."""
        if not self.name:
            force_setattr(self, "name", self.uuid)


class GpuJoined(Message, frozen=True):
    """A worker is ready, with an empty working set."""

    gpu: GpuInfo


class GpuLost(Message, frozen=True):
    """A worker has died or was killed. All its assignments are gone."""

    gpu_uuid: str
    reason: str


class StepReport(Message, frozen=True, kw_only=True):
    """The result of one step of one GPU or, without tokens, of applying commands while idle.

    Tokens are in columns. An assignment is named by its counter alone: a worker has those of one incarnation only.
    From step to step they are mostly the same, each at its next position, so they are named once; see ``row_headers``.
    """

    gpu_uuid: str
    #: Incremented by every Reset; the supervisor drops reports of an earlier epoch.
    epoch: int
    #: Model invocations since the worker started.
    step: int
    #: The highest ``seq`` of the commands applied before this step.
    applied_seq: int
    #: The incarnation of all assignments in this report; 0 from a worker that has never had one.
    incarnation: int = 0
    #: Counters of the assignments, one for each row.
    assignments: tuple[int, ...] = ()
    positions: tuple[int, ...] = ()
    token_ids: tuple[TokenId, ...] = ()
    #: Empty if no row has any.
    logprobs: tuple[TokenLogprobs | None, ...] = ()
    #: Assignments that ended by themselves with these tokens, and why.
    finished: tuple[tuple[int, EndReason], ...] = ()
    #: Assignments that the worker preempted because a page was missing.
    starved: tuple[int, ...] = ()
    free_kv_pages: int
    #: Requests in the newest invocation; 0 when idle.
    batch_size: int
    num_prefill_tokens: int
    #: Their distinct adapters.
    num_adapters: int
    duration_s: float
    #: Digests of the adapters in the LoRA pool; None if unchanged since the last report.
    resident: tuple[str, ...] | None = None
    #: 0: the report has full row headers, ``assignments`` and ``positions``. n: this is the n-th report with tokens
    #: after the one that had them, with the same rows, each n positions further.
    num_repeats: int = 0
    #: (counter of the assignment, prompt tokens found in the KvCache) of requests whose first tokens these are.
    cached: tuple[tuple[int, int], ...] = ()
    #: Holders of KvCache pages beyond each page's first: pages of requests, added up, exceed the pages in use by these.
    num_shared_kv_pages: int = 0
    #: Pages that a request could find, also free ones.
    num_known_kv_pages: int = 0
    #: Since the worker started: tokens of requests that began to share pages, and those of them that were found.
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    #: Hints of prefixes that became known or were found and were not reported since the last Reset, the newest last:
    #: see ``paging.prefix_hash.hints_of``.
    prefix_hints: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.num_repeats:
            check_columns(self.assignments, self.positions, self.token_ids, self.logprobs)
        elif self.assignments or self.positions or (self.logprobs and len(self.logprobs) != len(self.token_ids)):
            raise ValueError("the columns of a report without row headers are not of one length")


class AssignmentsFailed(Message, frozen=True):
    """The worker had to drop these assignments, all for the same reason."""

    gpu_uuid: str
    epoch: int
    applied_seq: int
    assignments: tuple[AssignmentId, ...]
    #: True: it would fail on every GPU (the adapter's files are invalid). False: a retry may succeed.
    permanent: bool
    error: WireError


class DrainRunner(Message, frozen=True):
    """The runner will stop: place nothing new on its GPUs, and move their requests."""


class AdaptersCached(Message, frozen=True):
    """Adapters were added to, or evicted from, a worker's host memory or (``gpu_uuid`` None) the runner's disk.

    A worker that joins or was Reset reports all that it has in ``came``; a runner does so after each handshake.
    """

    gpu_uuid: str | None
    came: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


# ------------------------------------------------------------------ scheduler -> runner


class RunnerDrained(Message, frozen=True):
    """No request runs on the runner's GPUs or is assigned to them any more."""


# ------------------------------------------------------------------ scheduler -> runner -> worker


class StartRequest(Message, frozen=True):
    """Run this request from its current state: prefill prompt and generated tokens, then decode."""

    gpu_uuid: str
    #: Number of this command to the GPU since it joined, from 1.
    seq: int
    assignment: AssignmentId
    request: Request


class StopRequest(Message, frozen=True):
    """Drop this assignment between two steps and free its pages. Unknown ids are ignored."""

    gpu_uuid: str
    seq: int
    assignment: AssignmentId


class Warm(Message, frozen=True):
    """Prefetch this adapter to host memory, and to the GPU if there is room; see WarmAdapter for ``pin``."""

    gpu_uuid: str
    adapter: AdapterRef
    pin: bool | None = None
    #: A hint: to host memory alone, never pinned. It may be ignored, and its errors are told when the adapter is used.
    host_only: bool = False


class Forget(Message, frozen=True):
    """To a runner, and from it to all its workers: evict this adapter everywhere once no request uses it."""

    digest: str


class Ping(Message, frozen=True):
    """Supervisor to worker, at equal intervals: the worker answers with a Pong at once, even during a step."""

    number: int


class Reset(Message, frozen=True):
    """Supervisor to worker, after a lost link: drop all assignments; later reports carry this epoch."""

    epoch: int


class AdapterFetched(Message, frozen=True):
    """The answer to a FetchAdapter: exactly one of ``folder`` and ``error`` is set."""

    digest: str
    #: The folder on this host's disk. It may be evicted at any time; the worker then fetches it again.
    folder: str | None = None
    error: WireError | None = None
    #: A retry would fail too, here or on another host.
    is_permanent: bool = False


# ------------------------------------------------------------------ worker -> supervisor


class WorkerReady(Message, frozen=True):
    """The worker's handshake: it has loaded the model, compiled kernels and allocated memory."""

    gpu: GpuInfo


class Pong(Message, frozen=True):
    """The answer to the Ping with this number: the process runs, and its step loop has made so many turns."""

    number: int
    #: Turns of the step loop. One without requests counts; one that ran nothing though a request could run does not.
    num_turns: int


class WorkerFailed(Message, frozen=True):
    """The last message of a worker: why it can't start or continue. ``permanent``: a restart can't help."""

    error: WireError
    permanent: bool


class FetchAdapter(Message, frozen=True):
    """Fetch the files of this adapter to the host's disk, once for all its workers."""

    adapter: AdapterRef
