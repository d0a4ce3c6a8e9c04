"""The times of each request of a simulation, as its client would have seen them."""

import numpy as np

from punica_scheduler.simulator.stream_audit import StreamAudit
from punica_serve.simulation.arrivals import Arrivals
from punica_serve.simulation.attainment import RequestTimes


def request_times(arrivals: Arrivals, audit: StreamAudit) -> RequestTimes:
    """The times of a simulation that has ended."""
    numbers = np.flatnonzero(audit.is_whole)
    num_gaps = np.array([arrivals.lengths[number].output for number in numbers.tolist()]) - 1
    first_s, last_s = audit.first_token_s[numbers], audit.last_token_s[numbers]
    per_token_s = np.full(len(numbers), np.nan)
    np.divide(last_s - first_s, num_gaps, out=per_token_s, where=num_gaps > 0)
    return RequestTimes(numbers, first_s - np.array(arrivals.times_s)[numbers], per_token_s)
