"""The times of each request as its client saw them, and the share of promises that were kept."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from punica_serve.protocol import Slo

_Seconds = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """Columns over the requests that finished."""

    #: Numbers of these requests.
    numbers: npt.NDArray[np.int64]
    #: From its arrival to its first token.
    first_token_s: _Seconds
    #: From its first token to its last, for each token after the first. NaN for an answer of one token.
    time_per_token_s: _Seconds


@dataclass(frozen=True, slots=True)
class Attainment:
    """Shares of finished requests. A request without a promise keeps it."""

    first_token: float
    time_per_token: float
    both: float


def attainment(times: RequestTimes, slos: Sequence[Slo]) -> Attainment | None:
    """``slos`` has one for each request of the simulation. None if nothing is promised, or no request finished."""
    own = [slos[number] for number in times.numbers.tolist()]
    first_s = _limits([slo.first_token_s for slo in own])
    per_token_s = _limits([slo.time_per_token_s for slo in own])
    if not own or (np.isinf(first_s).all() and np.isinf(per_token_s).all()):
        return None
    in_time = times.first_token_s <= first_s
    keeps_pace = ~(times.time_per_token_s > per_token_s)  # NaN has no pace to keep
    return Attainment(float(in_time.mean()), float(keeps_pace.mean()), float((in_time & keeps_pace).mean()))


def _limits(promises: Sequence[float | None]) -> _Seconds:
    return np.array([np.inf if promised_s is None else promised_s for promised_s in promises])
