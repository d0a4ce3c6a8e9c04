"""A frontend's counters since its start, for one event loop. Does no input or output.

Counters updated per token have no labels. Counts by adapter and tenant are updated once for each request, at its end.
"""

from collections import Counter
from typing import Literal, NamedTuple

from punica_frontend.metrics.bounded_labels import OTHER, BoundedLabels
from punica_frontend.metrics.distribution import Distribution
from punica_frontend.metrics.promise_judge import COMPLETED, judge
from punica_serve.errors import PunicaError
from punica_serve.protocol import NO_PROMISES, Ending, FinishReason, Slo

#: Upper bounds of the histograms' buckets.
FIRST_TOKEN_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
INTER_TOKEN_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 5.0)
REQUEST_BOUNDS_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 300.0)
QUEUE_BOUNDS_S = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
CHOICES_BOUNDS = (1, 2, 5, 10, 20)
TOKENS_BOUNDS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 50_000)
#: Fewer buckets, since each labelled adapter and tenant has them.
USE_FIRST_TOKEN_BOUNDS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
USE_TOKEN_BOUNDS_S = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 1.0)

#: Why the frontend ended a connection: its client sent too slowly, read too slowly, or was one too many.
CutReason = Literal["header_timeout", "body_late", "stalled", "too_many_connections"]

#: Whether a request with an unknown field was refused, or answered without it.
UnknownOutcome = Literal["refused", "ignored"]


class AnswerKind(NamedTuple):
    """Labels of an HTTP answer. Each has few values, whatever clients send."""

    #: The route's path with its parameters' names, such as `/v1/adapters/{name}`.
    handler: str
    method: str
    #: The class of the status, such as `2xx`.
    status: str


#: Default number of adapters, tenants and unknown fields with labels of their own.
NUM_NAMED = 20


class UsageStats:
    """Totals of one adapter's or one tenant's requests."""

    __slots__ = (
        "first_token_s",
        "num_cached_tokens",
        "num_generated_tokens",
        "num_prompt_tokens",
        "num_requests",
        "token_s",
    )

    def __init__(self) -> None:
        self.num_requests = self.num_prompt_tokens = self.num_cached_tokens = self.num_generated_tokens = 0
        self.first_token_s = Distribution(USE_FIRST_TOKEN_BOUNDS_S)
        #: Each request's mean time between two tokens.
        self.token_s = Distribution(USE_TOKEN_BOUNDS_S)


class TenantStats(UsageStats):
    """Totals of one tenant's requests, with the promises that were kept and broken."""

    __slots__ = ("promises",)

    def __init__(self) -> None:
        super().__init__()
        self.promises = NO_PROMISES


class Metrics:
    """All counters of one frontend."""

    def __init__(self, num_named: int = NUM_NAMED) -> None:
        """The ``num_named`` most used adapters, tenants and unknown fields get labels of their own."""
        #: Ended requests, by finish reason or error code.
        self.num_ended: Counter[str] = Counter()
        #: Requests without a token yet, and requests that generate.
        self.num_waiting = self.num_running = 0
        #: Requests without a token yet, by adapter.
        self.waiting_adapters: Counter[str] = Counter()
        self.num_websockets = 0
        #: Answers to HTTP requests, and to websockets' handshakes.
        self.num_answers: Counter[AnswerKind] = Counter()
        #: Connections that the frontend ended.
        self.num_cut: Counter[CutReason] = Counter()
        #: Tokens of requests that were added to the cluster.
        self.num_prompt_tokens = self.num_generated_tokens = 0
        #: Preemptions of this frontend's requests for lack of GPU memory.
        self.num_evictions = 0
        #: Time from a request's arrival to its first token.
        self.first_token_s = Distribution(FIRST_TOKEN_BOUNDS_S)
        #: Time between two tokens of a request. Tokens that arrive together share the time since the last ones.
        self.inter_token_s = Distribution(INTER_TOKEN_BOUNDS_S)
        #: Time from arrival to end, of completed requests.
        self.request_s = Distribution(REQUEST_BOUNDS_S)
        self.prompt_tokens = Distribution(TOKENS_BOUNDS)
        self.generated_tokens = Distribution(TOKENS_BOUNDS)
        #: Total time that a request waited for a GPU.
        self.queue_s = Distribution(QUEUE_BOUNDS_S)
        #: Times of a completed request: first placement to first token, first token to last one, and both together.
        self.prefill_s = Distribution(FIRST_TOKEN_BOUNDS_S)
        self.decode_s = Distribution(REQUEST_BOUNDS_S)
        self.inference_s = Distribution(REQUEST_BOUNDS_S)
        #: Mean time between two tokens of a completed request.
        self.token_s = Distribution(INTER_TOKEN_BOUNDS_S)
        #: Parameters of completed requests: choices of a prompt, and most tokens of an answer.
        self.num_choices = Distribution(CHOICES_BOUNDS)
        self.max_tokens = Distribution(TOKENS_BOUNDS)
        self.adapters = BoundedLabels(num_named, UsageStats)
        self.tenants = BoundedLabels(num_named, TenantStats)
        #: Unknown fields of OpenAI's and TGI's bodies.
        self.unknown_fields: BoundedLabels[Counter[UnknownOutcome]] = BoundedLabels(num_named, Counter)

    def begin(self, arrived_s: float, params: "RequestParams", *, adapter: str, tenant: str) -> "RequestMetrics":
        """Counts a request as live until ``RequestMetrics.end``."""
        self.num_waiting += 1
        self.waiting_adapters[adapter] += 1
        self.num_prompt_tokens += params.num_prompt_tokens
        return RequestMetrics(self, arrived_s, params, adapter, tenant)

    def refused(self, code: str) -> None:
        """Counts a request that was refused with this error code before it began."""
        self.num_ended[code] += 1

    def unknown_field(self, name: str | None, outcome: UnknownOutcome) -> None:
        """Counts a request with this unknown field; None stands for a name that can't be shown."""
        self.unknown_fields.use(OTHER if name is None else name)[outcome] += 1


class RequestParams(NamedTuple):
    """Parameters of a request that are counted."""

    num_prompt_tokens: int
    max_tokens: int
    #: Choices of its prompt, on the first of them; 0 on the others.
    num_choices: int = 1
    #: Its promises, which are judged at its end.
    slo: Slo | None = None


class RequestMetrics:
    """The metrics of one live request. ``outcome`` stays "cancelled" unless it is set before ``end``."""

    __slots__ = (
        "_adapter",
        "_arrived_s",
        "_decode_s",
        "_first_s",
        "_last_s",
        "_metrics",
        "_num_tokens",
        "_params",
        "_prefill_s",
        "_tenant",
        "num_cached_tokens",
        "outcome",
        "promises",
    )

    def __init__(self, metrics: Metrics, arrived_s: float, params: RequestParams, adapter: str, tenant: str) -> None:
        self._metrics = metrics
        self._arrived_s = self._last_s = arrived_s
        self._first_s: float | None = None
        self._params = params
        #: The scheduler's time, and the decode time of a completed request, until both are known.
        self._prefill_s: float | None = None
        self._decode_s: float | None = None
        self._num_tokens = 0
        self._adapter = adapter
        self._tenant = tenant
        #: Tokens of its prompt that were found in a KvCache.
        self.num_cached_tokens = 0
        self.outcome: FinishReason | str = "cancelled"
        #: Its judged promises, from ``end`` on.
        self.promises = NO_PROMISES

    def add_tokens(self, num_tokens: int, now_s: float) -> None:
        """Counts tokens that arrived together."""
        if not num_tokens:
            return
        metrics, waited_s, self._last_s = self._metrics, now_s - self._last_s, now_s
        metrics.num_generated_tokens += num_tokens
        self._num_tokens += num_tokens
        if self._first_s is not None:
            metrics.inter_token_s.observe(waited_s / num_tokens, num_tokens)
        else:
            self._first_s = now_s
            metrics.first_token_s.observe(waited_s)
            metrics.num_running += 1
            self._wait_no_more()

    @property
    def arrived_s(self) -> float:
        return self._arrived_s

    @property
    def num_tokens(self) -> int:
        return self._num_tokens

    @property
    def first_token_s(self) -> float | None:
        """Time from arrival to first token; None while there is none."""
        return None if self._first_s is None else self._first_s - self._arrived_s

    @property
    def time_per_token_s(self) -> float | None:
        """Mean time between two tokens; None while there are no two."""
        if self._first_s is None or self._num_tokens < 2:
            return None
        return (self._last_s - self._first_s) / (self._num_tokens - 1)

    def end(self, now_s: float) -> None:
        metrics = self._metrics
        metrics.num_ended[self.outcome] += 1
        if self._first_s is None:
            self._wait_no_more()
        else:
            metrics.num_running -= 1
        if self.outcome in COMPLETED:
            metrics.request_s.observe(now_s - self._arrived_s)
            metrics.prompt_tokens.observe(self._params.num_prompt_tokens)
            metrics.generated_tokens.observe(self._num_tokens)
            metrics.max_tokens.observe(self._params.max_tokens)
            if self._params.num_choices:
                metrics.num_choices.observe(self._params.num_choices)
            self._end_decode()
        self._add_to(metrics.adapters.use(self._adapter))
        tenant = metrics.tenants.use(self._tenant)
        self._add_to(tenant)
        self.promises = judge(
            self._params.slo,
            self.outcome,
            first_token_s=self.first_token_s,
            time_per_token_s=self.time_per_token_s,
        )
        tenant.promises += self.promises

    def ended_in_cluster(self, ending: Ending) -> None:
        """Counts the scheduler's report of the request's end, which comes before ``end`` or after it."""
        metrics = self._metrics
        metrics.num_evictions += ending.num_evictions
        if ending.reason != "error":
            metrics.queue_s.observe(ending.queue_s)
        self._prefill_s = ending.prefill_s
        self._observe_inference()

    def _end_decode(self) -> None:
        if self._first_s is None:
            return
        self._decode_s = self._last_s - self._first_s
        self._metrics.decode_s.observe(self._decode_s)
        if (token_s := self.time_per_token_s) is not None:
            self._metrics.token_s.observe(token_s)
        self._observe_inference()

    def _observe_inference(self) -> None:
        """Observes the prefill, once the request was completed here and its end was reported."""
        if self._prefill_s is not None and self._decode_s is not None:
            self._metrics.prefill_s.observe(self._prefill_s)
            self._metrics.inference_s.observe(self._prefill_s + self._decode_s)
            self._prefill_s = None

    def _wait_no_more(self) -> None:
        metrics = self._metrics
        metrics.num_waiting -= 1
        metrics.waiting_adapters[self._adapter] -= 1
        if not metrics.waiting_adapters[self._adapter]:
            del metrics.waiting_adapters[self._adapter]

    def _add_to(self, use: UsageStats) -> None:
        use.num_requests += 1
        use.num_prompt_tokens += self._params.num_prompt_tokens
        use.num_cached_tokens += self.num_cached_tokens
        use.num_generated_tokens += self._num_tokens
        if (first_token_s := self.first_token_s) is not None:
            use.first_token_s.observe(first_token_s)
        if (token_s := self.time_per_token_s) is not None:
            use.token_s.observe(token_s)


def outcome_of(error: BaseException) -> str:
    if isinstance(error, PunicaError):
        return error.code
    return PunicaError.code if isinstance(error, Exception) else "cancelled"
