"""What a frontend has seen since it started: plain numbers of one event loop. Does no input or output.

What is asked of each token is counted without labels; what is told by adapter and by tenant is counted once for each
request, at its end.
"""

from collections import Counter
from typing import Literal

from punica_frontend.metrics.busiest import Busiest
from punica_frontend.metrics.distribution import Distribution
from punica_serve.errors import PunicaError
from punica_serve.protocol import Ending, FinishReason

#: Upper bounds of the buckets that are counted in.
FIRST_TOKEN_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
INTER_TOKEN_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 5.0)
REQUEST_BOUNDS_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 300.0)
QUEUE_BOUNDS_S = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
TOKENS_BOUNDS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 50_000)
#: Fewer: these are there for each adapter and each tenant.
USE_FIRST_TOKEN_BOUNDS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
USE_TOKEN_BOUNDS_S = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 1.0)

#: Why a connection was ended from here: its client sent too slowly, took too slowly, or was one too many.
Cut = Literal["head_late", "body_late", "stalled", "crowded"]

#: Adapters, and tenants, with a name of their own by default.
NUM_NAMED = 20


class Use:
    """What the requests of one adapter, or of one tenant, came to."""

    __slots__ = ("first_token_s", "num_generated_tokens", "num_prompt_tokens", "num_requests", "token_s")

    def __init__(self) -> None:
        self.num_requests = self.num_prompt_tokens = self.num_generated_tokens = 0
        self.first_token_s = Distribution(USE_FIRST_TOKEN_BOUNDS_S)
        #: Of each request, the mean time between two of its tokens.
        self.token_s = Distribution(USE_TOKEN_BOUNDS_S)


class Figures:
    """Of one frontend."""

    def __init__(self, num_named: int = NUM_NAMED) -> None:
        """``num_named`` adapters, and as many tenants, are told apart: those that are used most."""
        #: Requests that ended, by a finish reason or by the code of the error that ended them.
        self.num_ended: Counter[str] = Counter()
        #: Requests of which no token has come yet, and those that are being answered.
        self.num_waiting = self.num_running = 0
        #: Of those without a token, by adapter.
        self.waiting_adapters: Counter[str] = Counter()
        self.num_websockets = 0
        #: Connections that were ended from here.
        self.num_cut: Counter[Cut] = Counter()
        #: Of the requests that were added to the cluster.
        self.num_prompt_tokens = self.num_generated_tokens = 0
        #: Times that a request of this frontend was taken off a GPU for lack of memory.
        self.num_evictions = 0
        #: From a request's arrival to its first token here.
        self.first_token_s = Distribution(FIRST_TOKEN_BOUNDS_S)
        #: Between one token of a request and the next; tokens that come together share the time since those before.
        self.inter_token_s = Distribution(INTER_TOKEN_BOUNDS_S)
        #: Of requests that ended by themselves, from arrival to end.
        self.request_s = Distribution(REQUEST_BOUNDS_S)
        self.prompt_tokens = Distribution(TOKENS_BOUNDS)
        self.generated_tokens = Distribution(TOKENS_BOUNDS)
        #: What a request waited for a GPU, all its waits together.
        self.queue_s = Distribution(QUEUE_BOUNDS_S)
        self.adapters = Busiest(num_named, Use)
        self.tenants = Busiest(num_named, Use)

    def begin(self, arrived_s: float, num_prompt_tokens: int, *, adapter: str, tenant: str) -> "RequestFigures":
        """Counts a request as live until its figures are told of its end."""
        self.num_waiting += 1
        self.waiting_adapters[adapter] += 1
        self.num_prompt_tokens += num_prompt_tokens
        return RequestFigures(self, arrived_s, num_prompt_tokens, adapter, tenant)

    def refused(self, code: str) -> None:
        """Counts a request that an error of this code ended before it began."""
        self.num_ended[code] += 1

    def ended_in_cluster(self, ending: Ending) -> None:
        """What the scheduler says of a request; of one that was cancelled it comes after its end here."""
        self.num_evictions += ending.num_evictions
        if ending.reason != "error":
            self.queue_s.observe(ending.queue_s)


class RequestFigures:
    """Of one live request. Whoever learns how it ended sets ``outcome``; it is cancelled if nobody does."""

    __slots__ = (
        "_adapter",
        "_arrived_s",
        "_figures",
        "_first_s",
        "_last_s",
        "_num_prompt_tokens",
        "_num_tokens",
        "_tenant",
        "outcome",
    )

    def __init__(self, figures: Figures, arrived_s: float, num_prompt_tokens: int, adapter: str, tenant: str) -> None:
        self._figures = figures
        self._arrived_s = self._last_s = arrived_s
        self._first_s: float | None = None
        self._num_prompt_tokens = num_prompt_tokens
        self._num_tokens = 0
        self._adapter = adapter
        self._tenant = tenant
        self.outcome: FinishReason | str = "cancelled"

    def add_tokens(self, num_tokens: int, now_s: float) -> None:
        """So many tokens have come together."""
        if not num_tokens:
            return
        figures, waited_s, self._last_s = self._figures, now_s - self._last_s, now_s
        figures.num_generated_tokens += num_tokens
        self._num_tokens += num_tokens
        if self._first_s is not None:
            figures.inter_token_s.observe(waited_s / num_tokens, num_tokens)
        else:
            self._first_s = now_s
            figures.first_token_s.observe(waited_s)
            figures.num_running += 1
            self._wait_no_more()

    @property
    def arrived_s(self) -> float:
        return self._arrived_s

    @property
    def num_tokens(self) -> int:
        return self._num_tokens

    @property
    def first_token_s(self) -> float | None:
        """From arrival to first token; None as long as none has come."""
        return None if self._first_s is None else self._first_s - self._arrived_s

    def end(self, now_s: float) -> None:
        figures = self._figures
        figures.num_ended[self.outcome] += 1
        if self._first_s is None:
            self._wait_no_more()
        else:
            figures.num_running -= 1
        if self.outcome in ("stop", "length"):
            figures.request_s.observe(now_s - self._arrived_s)
            figures.prompt_tokens.observe(self._num_prompt_tokens)
            figures.generated_tokens.observe(self._num_tokens)
        self._add_to(figures.adapters.use(self._adapter))
        self._add_to(figures.tenants.use(self._tenant))

    def _wait_no_more(self) -> None:
        figures = self._figures
        figures.num_waiting -= 1
        figures.waiting_adapters[self._adapter] -= 1
        if not figures.waiting_adapters[self._adapter]:
            del figures.waiting_adapters[self._adapter]

    def _add_to(self, use: Use) -> None:
        use.num_requests += 1
        use.num_prompt_tokens += self._num_prompt_tokens
        use.num_generated_tokens += self._num_tokens
        if self._first_s is not None:
            use.first_token_s.observe(self._first_s - self._arrived_s)
        if self._first_s is not None and self._num_tokens > 1:
            use.token_s.observe((self._last_s - self._first_s) / (self._num_tokens - 1))


def outcome_of(error: BaseException) -> str:
    if isinstance(error, PunicaError):
        return error.code
    return PunicaError.code if isinstance(error, Exception) else "cancelled"
