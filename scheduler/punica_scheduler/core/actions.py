"""Actions: what the scheduler wants done, in the imperative, each with its address."""

from msgspec import Struct

from punica_serve.protocol import (
    AdapterRef,
    AssignmentId,
    Deliveries,
    Limits,
    MarkKind,
    Request,
    ScaleAdvice,
    WireError,
)


class Start(Struct, frozen=True):
    """Run the request on this GPU, from where it is. ``seq`` counts the commands to the GPU since it joined."""

    gpu_uuid: str
    seq: int
    assignment: AssignmentId
    request: Request


class Stop(Struct, frozen=True):
    """Drop this assignment and free its pages."""

    gpu_uuid: str
    seq: int
    assignment: AssignmentId


class Deliver(Struct, frozen=True):
    """Hand a frontend the tokens and ends of its requests. One for each frontend, before all other actions."""

    frontend_id: str
    deliveries: Deliveries


class AnnounceLimits(Struct, frozen=True):
    """Tell a frontend what the cluster can hold now."""

    frontend_id: str
    limits: Limits


class RunnerDrained(Struct, frozen=True):
    """Tell a draining runner that its GPUs are empty."""

    runner_id: str


class CallAnswered(Struct, frozen=True):
    """Tell a frontend that its call was done or has begun, or why it failed."""

    frontend_id: str
    call_id: int
    error: WireError | None = None


class Warm(Struct, frozen=True):
    """Load an adapter into a GPU and its worker's host memory, or (``host_only``) hint that host memory may need it."""

    gpu_uuid: str
    adapter: AdapterRef
    pin: bool | None
    host_only: bool = False


class Forget(Struct, frozen=True):
    """Have a runner and its workers drop an adapter that no request uses."""

    runner_id: str
    digest: str


class Advise(Struct, frozen=True):
    """Advise the operator how many GPUs to have. Sent only when the advice has changed."""

    advice: ScaleAdvice


class RecordTokens(Struct, frozen=True):
    """Record for telemetry how long the accepted tokens of one step report took."""

    #: From admission to first token, one for each request that got its first token.
    first_token_ns: tuple[int, ...]
    #: Since the GPU's report before, and how many requests got a token after another one.
    inter_token_ns: int
    num_continued: int


class RecordEvent(Struct, frozen=True):
    """Record for telemetry what has happened to the cluster."""

    kind: MarkKind
    gpu_uuid: str | None


Telemetry = RecordTokens | RecordEvent
Action = Start | Stop | Deliver | AnnounceLimits | RunnerDrained | CallAnswered | Warm | Forget | Advise | Telemetry
