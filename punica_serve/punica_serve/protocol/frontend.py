"""Messages between a frontend and the scheduler."""

from punica_serve.protocol.base import FinishReason, Message, Struct
from punica_serve.protocol.request import AdapterRef, Request, TenantQuota, TokenLogprobs, WireError, check_columns
from punica_serve.protocol.slo import PromiseCounts

# ------------------------------------------------------------------ frontend -> scheduler


class AddRequest(Message, frozen=True):
    """A new request; or, after a reconnect, one that the frontend owns, with the tokens it has."""

    #: The frontend's own number for the request, used in deliveries. A frontend process never reuses one.
    handle: int
    request: Request
    #: The tenant's current quota; the scheduler enforces it, because it sees all requests. None: no limits.
    quota: TenantQuota | None = None
    #: False: it was added before, perhaps to an earlier scheduler. It counts as running, but no quota refuses it.
    is_new: bool = True


class CancelRequest(Message, frozen=True):
    request_id: str


class GetCluster(Message, frozen=True):
    """A unary call: the answer is a ClusterReply with the same call_id."""

    call_id: int


class GetGpu(Message, frozen=True):
    """A unary call: the answer is a GpuReply, or a CallReply with GpuNotFound, with the same call_id."""

    call_id: int
    #: Its UUID or its name.
    gpu: str


class GetHistory(Message, frozen=True):
    """A unary call: the answer is a HistoryReply with the same call_id."""

    call_id: int


class DrainGpu(Message, frozen=True):
    """A unary call: place nothing new on this GPU and move its requests, or (``drain`` false) use it again.

    The answer is a CallReply with the same call_id.
    """

    call_id: int
    #: Its UUID or its name.
    gpu: str
    drain: bool


class WarmAdapter(Message, frozen=True):
    """A unary call: prefetch an adapter to host memory and GPU. The answer is a CallReply.

    It only says that the call was passed on; GetResidency shows where the adapter has arrived.
    """

    call_id: int
    adapter: AdapterRef
    #: UUIDs or names. Empty: all GPUs.
    gpus: tuple[str, ...] = ()
    #: True pins it: it stays in host memory, and only adapters in use can evict it from a GPU. False unpins it.
    #: None changes nothing.
    pin: bool | None = None


class ForgetAdapter(Message, frozen=True):
    """A unary call: evict an adapter from GPU memory, host memory and disk everywhere, once no request uses it.

    It also unpins it. The CallReply says that the call was passed on; GetResidency shows when the adapter is gone.
    """

    call_id: int
    digest: str


class GetResidency(Message, frozen=True):
    """A unary call: where adapters are. The answer is a ResidencyReply with the same call_id."""

    call_id: int
    #: Empty: all adapters that are somewhere.
    digests: tuple[str, ...] = ()


class PromisesJudged(Message, frozen=True):
    """The promises that this frontend has judged since its last such message: at most one a second.

    Those of a message that is lost with its link are counted by the frontend alone.
    """

    promises: PromiseCounts


# ------------------------------------------------------------------ scheduler -> frontend


class Ending(Struct, frozen=True):
    """The end of a request: its handle is not used again."""

    handle: int
    #: Generated tokens in all, so that a frontend with a different number detects an error.
    num_tokens: int
    reason: FinishReason
    #: Set exactly if the reason is "error".
    error: WireError | None = None
    #: GPU time of the request, in seconds: its share of the rows of each step.
    gpu_s: float = 0.0
    #: Seconds in the queue, all its waits together.
    queue_s: float = 0.0
    #: Preemptions for lack of memory.
    num_evictions: int = 0
    #: Seconds from its first placement on a GPU to its first token. None: it got no token, or an earlier incarnation
    #: gave it the first one.
    prefill_s: float | None = None


class RateLimits(Struct, frozen=True):
    """The rest of a tenant's limits per minute, counted when this request was admitted or refused."""

    handle: int
    #: None, here and below: there is no such limit.
    limit_requests: int | None
    remaining_requests: int | None
    limit_tokens: int | None
    #: Without those that are reserved by running requests.
    remaining_tokens: int | None
    #: Seconds until the limits are fully available again, if the tenant sends no further request.
    reset_s: float


class Deliveries(Message, frozen=True):
    """Tokens of a frontend's requests, in columns and in order, and the endings that follow them."""

    handles: tuple[int, ...] = ()
    #: Without ``offset``: while the same requests advance one position each step, this column does not change.
    positions: tuple[int, ...] = ()
    token_ids: tuple[int, ...] = ()
    #: Empty if no row has any.
    logprobs: tuple[TokenLogprobs | None, ...] = ()
    endings: tuple[Ending, ...] = ()
    offset: int = 0
    #: For new requests whose tenants have limits per minute. Process them first.
    rate_limits: tuple[RateLimits, ...] = ()
    #: (handle, prompt tokens found in the KvCache) of requests whose first tokens these are, on GPUs that share pages.
    cached: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        check_columns(self.handles, self.positions, self.token_ids, self.logprobs)


class Limits(Message, frozen=True):
    """The capacity and the speed of the cluster, sent after Welcome and whenever it changes."""

    num_gpus: int
    #: Tokens of the longest request the largest KvCache can hold; None while no GPU has joined, and where a KvCache
    #: holds requests of any length, since pages behind windows are given back.
    max_request_tokens: int | None = None
    #: How many of the GPUs are draining.
    num_draining: int = 0
    #: The shortest times that an idle GPU needs, by the scheduler's profile: for the first token after a prompt of one
    #: token, and between two tokens of one request alone. 0: not known. No shorter ones can be promised.
    least_first_token_s: float = 0.0
    least_time_per_token_s: float = 0.0
