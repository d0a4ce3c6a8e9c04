"""Between a frontend and the scheduler."""

from punica_serve.protocol.base import FinishReason, Message, Struct
from punica_serve.protocol.request import AdapterRef, Request, TenantQuota, TokenLogprobs, WireError, check_columns

# ------------------------------------------------------------------ frontend -> scheduler


class AddRequest(Message, frozen=True):
    """A new request, or again one that the frontend owns, with the tokens it holds."""

    #: The frontend's own number of the request, which deliveries name. A frontend process never uses one twice.
    handle: int
    request: Request
    #: Of the request's tenant, as it is now; the scheduler counts, since all requests pass it. None: no limits.
    quota: TenantQuota | None = None
    #: False: added before, to this or to an earlier scheduler. It counts as running, but is not refused for a quota.
    is_new: bool = True


class CancelRequest(Message, frozen=True):
    request_id: str


class GetCluster(Message, frozen=True):
    """A unary call: the answer is a ClusterReply with the same call_id."""

    call_id: int


class GetHistory(Message, frozen=True):
    """A unary call: the answer is a HistoryReply with the same call_id."""

    call_id: int


class DrainGpu(Message, frozen=True):
    """A unary call: place nothing new on this GPU and move what runs there, or (``drain`` false) use it again.

    The answer is a CallReply with the same call_id.
    """

    call_id: int
    gpu_uuid: str
    drain: bool


class WarmAdapter(Message, frozen=True):
    """A unary call: bring an adapter to host memory and GPU before anyone asks for it. Answered by a CallReply.

    That it was passed on is all that the answer says; GetResidency tells where the adapter has arrived.
    """

    call_id: int
    adapter: AdapterRef
    #: Empty: all.
    gpu_uuids: tuple[str, ...] = ()
    #: True: it stays in host memory, and leaves a GPU only for adapters that are in use. False: no longer.
    #: None: as before.
    pin: bool | None = None


class ForgetAdapter(Message, frozen=True):
    """A unary call: free GPU memory, host memory and disk of an adapter everywhere, as soon as no request uses it.

    Pins end. The CallReply says that it was passed on; GetResidency tells when it is gone.
    """

    call_id: int
    digest: str


class GetResidency(Message, frozen=True):
    """A unary call: where adapters are. The answer is a ResidencyReply with the same call_id."""

    call_id: int
    #: Empty: all that are anywhere.
    digests: tuple[str, ...] = ()


# ------------------------------------------------------------------ scheduler -> frontend


class Ending(Struct, frozen=True):
    """The end of a request: nothing follows for its handle."""

    handle: int
    #: Tokens generated in all, so that a frontend which holds others knows that something is wrong.
    num_tokens: int
    reason: FinishReason
    #: Given exactly when the reason is "error".
    error: WireError | None = None
    #: GPU time that the request took, in seconds: of each step, its share of the rows.
    gpu_s: float = 0.0
    #: That it waited for a place on a GPU, all its waits together.
    queue_s: float = 0.0
    #: Times that it was taken off a GPU for lack of memory.
    num_evictions: int = 0


class Deliveries(Message, frozen=True):
    """Tokens of a frontend's requests, in columns and in order, and the ends that come after them."""

    handles: tuple[int, ...] = ()
    #: Less ``offset``: from step to step the same requests are each one position further, and this column stays.
    positions: tuple[int, ...] = ()
    token_ids: tuple[int, ...] = ()
    #: Empty when no row has any.
    logprobs: tuple[TokenLogprobs | None, ...] = ()
    endings: tuple[Ending, ...] = ()
    offset: int = 0

    def __post_init__(self) -> None:
        check_columns(self.handles, self.positions, self.token_ids, self.logprobs)


class Limits(Message, frozen=True):
    """What the cluster can hold, sent after Welcome and whenever it changes."""

    num_gpus: int
    #: Tokens of the longest request the largest KvCache can hold; None while no GPU has joined.
    max_request_tokens: int | None = None
    #: Of the GPUs, those that nothing new is placed on.
    num_draining: int = 0
