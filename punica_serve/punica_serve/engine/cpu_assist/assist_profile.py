"""Measures at the start what exchanges take, with the real processes and on the real path."""

import logging
from collections.abc import Callable
from statistics import median

from punica_serve.engine.adapters.layer_arrival import Arrival, CpuArrival, CudaArrival
from punica_serve.engine.cpu_assist.assist_forecast import (
    AssistTimes,
    exchanged_bytes,
    fit_times,
    products_per_row,
)
from punica_serve.engine.cpu_assist.assist_job import AssistJob
from punica_serve.engine.cpu_assist.assistant import CpuAssist

log = logging.getLogger(__name__)

#: Rows and pages of the three exchanges that are measured, and how often each is.
_FEW_ROWS, _MANY_ROWS, _FEW_PAGES, _MANY_PAGES, _REPEATS = 1, 32, 1, 8, 3
#: Even a slow machine has done all layers by then.
_MAX_WAIT_S = 5.0


def measure_exchanges(assist: CpuAssist, time_exchanges: Callable[[AssistJob], float]) -> AssistTimes | None:
    """The times of one process. None if there is none, it does not answer, or the host cache is too small."""
    many_pages = next((count for count in range(_MANY_PAGES, _FEW_PAGES, -1) if assist.has_memory_for(count)), None)
    if many_pages is None or not assist.pool.ready:
        log.warning("exchanges with CPU processes were not measured; `engine.cold_start: auto` goes on without them")
        return None
    many_rows = min(_MANY_ROWS, assist.shape.max_rows)
    cases = ((_FEW_ROWS, _FEW_PAGES), (many_rows, _FEW_PAGES), (many_rows, many_pages))
    group, itemsize = assist.shape.groups[0], assist.shape.torch_dtype.itemsize
    measured = []
    for num_rows, num_pages in cases:
        times = [_measure(assist, num_rows, num_pages, time_exchanges) for _ in range(_REPEATS)]
        known = [seconds for seconds in times if seconds is not None]
        if not known:
            log.warning("CPU processes did not answer in time; `engine.cold_start: auto` goes on without them")
            return None
        num_products = num_rows * products_per_row(group, num_pages)
        measured.append((exchanged_bytes(group, num_rows, itemsize), num_products, median(known)))
    times_found = fit_times(measured)
    log.info(
        "an exchange with CPU processes takes %.0f us, %.2f ns a kilobyte and %.2f us a million products of one core",
        1e6 * times_found.fixed_s,
        1e12 * times_found.per_byte_s,
        1e12 * times_found.per_product_s,
    )
    return times_found


def _measure(
    assist: CpuAssist, num_rows: int, num_pages: int, time_exchanges: Callable[[AssistJob], float]
) -> float | None:
    """Seconds of one exchange with one process; None if it does not answer."""
    if not assist.pool.ready or not assist.wait_until_free(_MAX_WAIT_S):
        return None
    arrival = _never(assist)
    weights = assist.weights_of_first_group(num_pages)
    job = assist.start_job(weights, num_rows, assist.pool.ready[:1], arrival, _MAX_WAIT_S, lambda *_: None)
    try:
        seconds = time_exchanges(job)
    finally:
        has_answered = job.end()
    if not has_answered:
        assist.suspect(job)
        return None
    return seconds


def _never(assist: CpuAssist) -> Arrival:
    """The arrival of an adapter that nobody copies."""
    if assist.arrival_words is None:
        return CpuArrival(assist.shape.num_layers, lambda: None)
    return CudaArrival(assist.shape.num_layers, lambda: None, assist.arrival_words.ticket())
