"""Measures at the start what exchanges take, with the real processes and on the real path."""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from punica_serve.engine.adapters.layer_arrival import Arrival, ArrivalFailed, CpuArrival, CudaArrival, layer_groups
from punica_serve.engine.cpu_assist.assist_forecast import AssistTimes, ExchangeTimes, ExchangeWork, fit_times
from punica_serve.engine.cpu_assist.assist_job import AssistJob, WaitLimits
from punica_serve.engine.cpu_assist.assistant import CpuAssist

log = logging.getLogger(__name__)

#: Rows and pages of the four exchanges that are measured, and how often each is.
_MANY_ROWS, _ROWS_RATIO, _FEW_PAGES, _MANY_PAGES, _REPEATS = 128, 8, 1, 8, 3
#: Even a slow machine has done all layers by then.
_MAX_WAIT_S = 5.0
#: In this time all processes of a job have woken and wait for x, on a machine that does nothing else.
_WAKING_S = 0.01

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
    try:
        times = _measure_times(assist, many_pages, processes, time_exchanges)
    except _NoAnswer:
        log.warning("CPU processes did not answer in time; `engine.cold_start: auto` goes on without them")
        return None
    log.info("an exchange of a layer that has arrived takes %.1f us", 1e6 * times.arrived_s)
    return times


class _NoAnswer(Exception):
    """A process is not there any more, or does not answer."""


class _Run(NamedTuple):
    """What one job took."""

    #: Seconds until all processes were told of it.
    wake_s: float
    #: Seconds of each of its exchanges.
    exchange_s: float


def _measure_times(
    assist: CpuAssist, many_pages: int, processes: Sequence[int], time_exchanges: TimeExchanges
) -> AssistTimes:
    """Raises _NoAnswer."""
    one, all_ready = (_Profile(assist, own, time_exchanges) for own in (processes[:1], processes))
    alone = one.times(many_pages)
    together = all_ready.times(many_pages) if len(processes) > 1 else alone
    arrived_s = all_ready.arrived_s()
    assist.wait_until_free(_MAX_WAIT_S)  # no step has waited for the processes of the last job
    return AssistTimes(alone, together, arrived_s)


@dataclass(frozen=True, slots=True)
class _Profile:
    """Measures some processes. All methods raise _NoAnswer."""

    assist: CpuAssist
    processes: Sequence[int]
    time_exchanges: TimeExchanges

    def times(self, many_pages: int) -> ExchangeTimes:
        assist, num_processes = self.assist, len(self.processes)
        many_rows = min(_MANY_ROWS, assist.shape.max_rows)
        few_rows = max(1, many_rows // _ROWS_RATIO)
        group, itemsize = assist.shape.groups[0], assist.shape.torch_dtype.itemsize
        cases = [(rows, pages) for rows in (few_rows, many_rows) for pages in (_FEW_PAGES, many_pages)]
        measured = [
            (ExchangeWork.of(group, rows, pages, itemsize), self._exchange_s(rows, pages)) for rows, pages in cases
        ]
        found = fit_times(measured, num_processes, self._start_s(few_rows, measured[0][1]))
        log.info(
            "CPU processes, %d: %.0f us to begin a job, %.0f us an exchange, %.2f ns a kilobyte, and for each process"
            " %.2f us a million weights and %.2f us a million products",
            num_processes,
            1e6 * found.start_s,
            1e6 * found.fixed_s,
            1e12 * found.per_byte_s,
            1e12 * found.per_weight_s,
            1e12 * found.per_product_s,
        )
        return found

    def arrived_s(self) -> float:
        """Seconds that an exchange of a layer takes that has arrived."""
        return median(run.exchange_s for run in self._runs(1, _FEW_PAGES, has_arrived=True))

    def _exchange_s(self, num_rows: int, num_pages: int) -> float:
        """Seconds of one exchange, once the processes are awake: what they take to wake counts once for a step."""
        return median(run.exchange_s for run in self._runs(num_rows, num_pages, waking_s=_WAKING_S))

    def _start_s(self, num_rows: int, exchange_s: float) -> float:
        """Seconds by which a step is later that wakes the processes and is launched at once."""
        runs = self._runs(num_rows, _FEW_PAGES)
        late_s = max(0.0, median(run.exchange_s for run in runs) - exchange_s)
        return median(run.wake_s for run in runs) + self.assist.shape.num_layers * late_s

    def _runs(self, num_rows: int, num_pages: int, *, waking_s: float = 0.0, has_arrived: bool = False) -> list[_Run]:
        """The jobs that were answered, of a few that are alike."""
        runs = list[_Run]()
        for _ in range(_REPEATS):
            with suppress(_NoAnswer):
                runs.append(self._run(num_rows, num_pages, waking_s, has_arrived=has_arrived))
        if not runs:
            raise _NoAnswer
        return runs

    def _run(self, num_rows: int, num_pages: int, waking_s: float, *, has_arrived: bool) -> _Run:
        """A job of exchanges and nothing else."""
        assist, processes = self.assist, self.processes
        if not self._are_free():
            raise _NoAnswer
        arrival, weights = _arrival(assist, has_arrived=has_arrived), assist.weights_of_first_group(num_pages)
        started_s, limits = time.perf_counter(), WaitLimits.both(_MAX_WAIT_S)
        job = assist.start_job(weights, num_rows, processes, arrival, limits, lambda *_: None)
        wake_s, seconds = time.perf_counter() - started_s, 0.0
        try:
            if waking_s:
                time.sleep(waking_s)
            with suppress(ArrivalFailed):  # a step on a CPU has waited in vain; its job knows
                seconds = self.time_exchanges(job)
        finally:
            has_answered = job.end()
        if not has_answered:
            assist.suspect(job)
            raise _NoAnswer
        return _Run(wake_s, seconds)

    def _are_free(self) -> bool:
        """Waits for the processes to leave the last job, and for those that replace others to be ready."""
        pool = self.assist.pool
        if not self.assist.wait_until_free(_MAX_WAIT_S):
            return False
        return set(self.processes) <= set(pool.ready) or pool.wait_until_ready(_MAX_WAIT_S)


def _arrival(assist: CpuAssist, *, has_arrived: bool) -> Arrival:
    """The arrival of an adapter that nobody copies, or that has arrived."""
    num_layers, words = assist.shape.num_layers, assist.arrival_words
    groups = range(len(layer_groups(num_layers)) if has_arrived else 0)
    if words is None:
        arrival = CpuArrival(num_layers, lambda: None)
        for _ in groups:
            arrival.mark()
        return arrival
    ticket = words.ticket()
    for group in groups:  # nobody waits for the arrival's events, which would be recorded on the current GPU
        ticket.mark(group)
    return CudaArrival(num_layers, lambda: None, ticket)
