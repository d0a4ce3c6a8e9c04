"""Measures at the start what exchanges take, with the real processes and on the real path."""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from statistics import median

from punica_serve.engine.adapters.layer_arrival import Arrival, ArrivalFailed, CpuArrival, CudaArrival
from punica_serve.engine.cpu_assist.assist_forecast import AssistTimes, ExchangeTimes, ExchangeWork, fit_times
from punica_serve.engine.cpu_assist.assist_job import AssistJob, WaitLimits
from punica_serve.engine.cpu_assist.assistant import CpuAssist

log = logging.getLogger(__name__)

#: Rows and pages of the four exchanges that are measured, and how often each is.
_MANY_ROWS, _ROWS_RATIO, _FEW_PAGES, _MANY_PAGES, _REPEATS = 128, 8, 1, 8, 3
#: Even a slow machine has done all layers by then.
_MAX_WAIT_S = 5.0

#: Seconds of one exchange of a job that has just begun.
TimeExchanges = Callable[[AssistJob], float]


def measure_exchanges(assist: CpuAssist, time_exchanges: TimeExchanges) -> AssistTimes | None:
    """The times of one process, and of all that are ready.

    None if there is none, it does not answer, the host cache is too small, or prefills have one row.
    """
    many_pages = next((count for count in range(_MANY_PAGES, _FEW_PAGES, -1) if assist.has_memory_for(count)), None)
    processes = assist.pool.ready
    if many_pages is None or not processes or assist.shape.max_rows == 1:
        log.warning("exchanges with CPU processes were not measured; `engine.cold_start: auto` goes on without them")
        return None
    alone = _measure_times(assist, many_pages, processes[:1], time_exchanges)
    together = alone
    if alone is not None and len(processes) > 1:
        together = _measure_times(assist, many_pages, processes, time_exchanges)
    if alone is None or together is None:
        log.warning("CPU processes did not answer in time; `engine.cold_start: auto` goes on without them")
        return None
    return AssistTimes(alone, together)


def _measure_times(
    assist: CpuAssist, many_pages: int, processes: Sequence[int], time_exchanges: TimeExchanges
) -> ExchangeTimes | None:
    """The times of these processes; None if they don't answer."""
    many_rows = min(_MANY_ROWS, assist.shape.max_rows)
    few_rows = max(1, many_rows // _ROWS_RATIO)
    group, itemsize = assist.shape.groups[0], assist.shape.torch_dtype.itemsize
    measured = []
    for num_rows in (few_rows, many_rows):
        for num_pages in (_FEW_PAGES, many_pages):
            times = [_measure(assist, num_rows, num_pages, processes, time_exchanges) for _ in range(_REPEATS)]
            known = [seconds for seconds in times if seconds is not None]
            if not known:
                return None
            measured.append((ExchangeWork.of(group, num_rows, num_pages, itemsize), median(known)))
    found = fit_times(measured, len(processes))
    log.info(
        "an exchange with %d CPU processes takes %.0f us, %.2f ns a kilobyte, and for each process %.2f us a million"
        " weights and %.2f us a million products",
        len(processes),
        1e6 * found.fixed_s,
        1e12 * found.per_byte_s,
        1e12 * found.per_weight_s,
        1e12 * found.per_product_s,
    )
    return found


def _measure(
    assist: CpuAssist, num_rows: int, num_pages: int, processes: Sequence[int], time_exchanges: TimeExchanges
) -> float | None:
    """Seconds of one exchange; None if a process is not there any more, or does not answer."""
    if not set(processes) <= set(assist.pool.ready) or not assist.wait_until_free(_MAX_WAIT_S):
        return None
    arrival = _never(assist)
    weights = assist.weights_of_first_group(num_pages)
    job = assist.start_job(weights, num_rows, processes, arrival, WaitLimits.both(_MAX_WAIT_S), lambda *_: None)
    seconds = None
    try:
        with suppress(ArrivalFailed):  # a step on a CPU has waited in vain; its job knows
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
