"""What a frontend has seen since it started: plain numbers of one event loop. Does no input or output."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from punica_serve.errors import PunicaError
from punica_serve.protocol import FinishReason

#: Upper bounds of the buckets that times are counted in.
FIRST_TOKEN_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
INTER_TOKEN_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 5.0)


class Distribution:
    """How often values fell into which bucket."""

    def __init__(self, bounds: Sequence[float]) -> None:
        """``bounds`` ascend; a value belongs to the first bucket whose bound it does not exceed."""
        self.bounds = tuple(bounds)
        #: One more than bounds: the last bucket has none.
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times


@dataclass(slots=True)
class Figures:
    """Of one frontend."""

    #: Requests that ended, by a finish reason or by the code of the error that ended them.
    num_ended: Counter[str] = field(default_factory=Counter)
    #: Requests that are running or waiting for a GPU.
    num_live: int = 0
    num_websockets: int = 0
    #: Of the requests that were added to the cluster.
    num_prompt_tokens: int = 0
    num_generated_tokens: int = 0
    #: From a request's arrival to its first token here.
    first_token_s: Distribution = field(default_factory=lambda: Distribution(FIRST_TOKEN_BOUNDS_S))
    #: Between one token of a request and the next; tokens that come together share the time since those before.
    inter_token_s: Distribution = field(default_factory=lambda: Distribution(INTER_TOKEN_BOUNDS_S))

    def begin(self, arrived_s: float, num_prompt_tokens: int) -> "RequestFigures":
        """Counts a request as live until its figures are told of its end."""
        self.num_live += 1
        self.num_prompt_tokens += num_prompt_tokens
        return RequestFigures(self, arrived_s)


class RequestFigures:
    """Of one live request. Whoever learns how it ended sets ``outcome``; it is cancelled if nobody does."""

    def __init__(self, figures: Figures, arrived_s: float) -> None:
        self._figures = figures
        self._last_s = arrived_s
        self._has_begun = False
        self.outcome: FinishReason | str = "cancelled"

    def add_tokens(self, num_tokens: int, now_s: float) -> None:
        """So many tokens have come together."""
        if not num_tokens:
            return
        figures, waited_s, self._last_s = self._figures, now_s - self._last_s, now_s
        figures.num_generated_tokens += num_tokens
        if self._has_begun:
            figures.inter_token_s.observe(waited_s / num_tokens, num_tokens)
        else:
            figures.first_token_s.observe(waited_s)
            self._has_begun = True

    def end(self) -> None:
        self._figures.num_live -= 1
        self._figures.num_ended[self.outcome] += 1


def outcome_of(error: BaseException) -> str:
    if isinstance(error, PunicaError):
        return error.code
    return PunicaError.code if isinstance(error, Exception) else "cancelled"
