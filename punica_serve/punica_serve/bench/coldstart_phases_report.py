"""The tables of `bench coldstart` that say why: phases of first tokens, chunks of packed files, the longest gaps."""

from collections.abc import Sequence

import numpy as np

from punica_serve.bench.coldstart import CachedShares
from punica_serve.bench.coldstart_stream import StreamTimes
from punica_serve.bench.first_token_phases import NOTHING, PHASES, PhaseTimeline, StepGap, phase_times_s
from punica_serve.bench.percentiles import percentiles_ms
from punica_serve.bench.report import Column, TableData, Value
from punica_serve.engine.adapters.load_trace import LoadPhase, LoadTrace

#: The longest gaps that are listed.
_NUM_LONGEST = 8

_PHASE_COLUMNS = (
    Column("phase", "phase of a first token"),
    Column("warm_ms_mean", "warm ms", ".2f"),
    Column("cold_ms_mean", "cold ms", ".2f"),
    Column("cold_ms_p90", "p90", ".2f"),
    Column("cold_ms_max", "max", ".2f"),
    Column("num_gaps", "others' gaps in it, cold", ",d"),
    Column("gap_ms_mean", "ms", ".2f"),
    Column("gap_ms_max", "max", ".2f"),
    Column("gap_idle_ms", "device without a step ms", ".2f"),
    Column("gap_core_ms", "step loop on a core ms", ".2f"),
)
_PHASE_NOTE = "one after the other, so they add up; gaps count in the phase that took most of each"

_CHUNK_COLUMNS = (
    Column("num_loads", "loads", ",d"),
    Column("direct_share", "past the page cache", ".0%"),
    Column("num_chunks", "chunks", ".0f"),
    Column("megabytes", "MB", ".1f"),
    Column("read_ms", "one read ms", ".2f"),
    Column("read_ms_max", "max", ".2f"),
    Column("check_ms", "checked ms", ".2f"),
    Column("check_ms_max", "max", ".2f"),
    Column("queue_ms", "its copy queued ms", ".2f"),
    Column("queue_ms_max", "max", ".2f"),
    Column("left_ms", "copying the rest ms", ".2f"),
    Column("left_ms_max", "max", ".2f"),
)
_CHUNK_NOTE = "copying the rest: from the time when the step loop sees the load; it goes on beside the last two phases"

_GAP_COLUMNS = (
    Column("gap_ms", "longest gaps ms", ".2f"),
    Column("phase", "most of it in"),
    Column("num_prefill_tokens", "prefill tokens", ",d"),
    Column("idle_ms", "device without a step ms", ".2f"),
    Column("core_ms", "step loop on a core ms", ".2f"),
    Column("no_core_ms", "ready without a core ms", ".2f"),
)
_GAP_NOTE = "the step loop sleeps the rest of a gap: for the device, a lock or the GIL"


_HOST_COLUMNS = (
    Column("stream", "the host during streams"),
    Column("memory_gb", "memory GB", ".1f"),
    Column("grown_mb", "grown by MB", ",.0f"),
    Column("dirty_mb", "to be written MB, most", ",.0f"),
    Column("disk_mb", "read from disks MB", ",.0f"),
    Column("major_faults", "faults that read", ",d"),
    Column("direct_reclaims", "pages looked at for memory", ",d"),
    Column("stolen_ms", "stolen from cores ms", ",.0f"),
)
_HOST_NOTE = "disks and faults: of this process; the rest: of the machine; stolen: by its hypervisor"


def explaining_tables(warm: StreamTimes, cold: StreamTimes) -> list[TableData]:
    """Why cold requests came later, and others' tokens with them."""
    timeline = PhaseTimeline(cold.first_tokens)
    tables = [
        TableData(
            "phases", "first tokens by phase, means", _PHASE_COLUMNS, _phase_rows(warm, cold, timeline), (_PHASE_NOTE,)
        )
    ]
    traces = [token.trace for token in cold.first_tokens if token.trace is not None and token.trace.chunks]
    if traces:
        title = "loads from packed files: one chunk, means"
        tables.append(TableData("chunks", title, _CHUNK_COLUMNS, [_chunk_row(traces)], (_CHUNK_NOTE,)))
    longest = sorted(cold.gaps, key=lambda gap: gap.seconds, reverse=True)[:_NUM_LONGEST]
    if longest:
        rows = [_gap_row(gap, timeline.phase_of(gap)) for gap in longest]
        tables.append(
            TableData("longest_gaps", "others' longest gaps beside cold requests", _GAP_COLUMNS, rows, (_GAP_NOTE,))
        )
    rows = [_host_row(name, times) for name, times in (("all warm", warm), ("cold", cold)) if times.hosts]
    return [*tables, TableData("host", "the host", _HOST_COLUMNS, rows, (_HOST_NOTE,))]


def page_cache_facts(cached: CachedShares) -> dict[str, Value]:
    """How much of the packed files was where the loads look first."""
    if not cached.found:
        return {}
    return {
        "packed files in the page cache, % as found": 100 * float(np.mean(cached.found)),
        "packed files in the page cache, % as streams begin": 100 * float(np.mean(cached.at_start)),
    }


def _phase_rows(warm: StreamTimes, cold: StreamTimes, timeline: PhaseTimeline) -> list[tuple[Value, ...]]:
    warm_s, cold_s = phase_times_s(warm.first_tokens), phase_times_s(cold.first_tokens)
    gaps = timeline.sort(cold.gaps)
    rows: list[tuple[Value, ...]] = []
    for phase in (*PHASES, NOTHING):
        waits_s = cold_s.get(phase, [])
        if waits_s or gaps[phase]:
            times = _mean_ms(warm_s.get(phase, [])), _mean_ms(waits_s), *_ms(waits_s, 90, 100)
            lengths_s = [gap.seconds for gap in gaps[phase]]
            idle_ms, core_ms = (_mean_ms([getattr(gap, name) for gap in gaps[phase]]) for name in ("idle_s", "core_s"))
            rows.append((phase, *times, len(lengths_s), _mean_ms(lengths_s), *_ms(lengths_s, 100), idle_ms, core_ms))
    return rows


def _chunk_row(traces: Sequence[LoadTrace]) -> tuple[Value, ...]:
    chunks = [chunk for trace in traces for chunk in trace.chunks]
    parts = (
        [chunk.read_s - chunk.begun_s for chunk in chunks],
        [chunk.checked_s - chunk.read_s for chunk in chunks],
        [chunk.queued_s - chunk.checked_s for chunk in chunks],
        [span.end_s - span.start_s for trace in traces for span in trace.spans if span.phase is LoadPhase.COPYING],
    )
    return (
        len(traces),
        sum(bool(trace.is_direct) for trace in traces) / len(traces),
        len(chunks) / len(traces),
        sum(chunk.num_bytes for chunk in chunks) / len(traces) / 1e6,
        *(value for times_s in parts for value in (_mean_ms(times_s), *_ms(times_s, 100))),
    )


def _gap_row(gap: StepGap, phase: str) -> tuple[Value, ...]:
    times_s = (gap.idle_s, gap.core_s, gap.no_core_s)
    return (1e3 * gap.seconds, phase, gap.num_prefill_tokens, *(1e3 * seconds for seconds in times_s))


def _host_row(name: str, times: StreamTimes) -> tuple[Value, ...]:
    changes = [after.since(before) for before, after in times.hosts]
    return (
        name,
        times.hosts[0][0].memory_bytes / 1e9,
        sum(change.memory_bytes for change in changes) / 1e6,
        max(counters.dirty_bytes for both in times.hosts for counters in both) / 1e6,
        sum(change.disk_bytes for change in changes) / 1e6,
        sum(change.major_faults for change in changes),
        sum(change.direct_reclaims for change in changes),
        1e3 * sum(change.stolen_s for change in changes),
    )


def _mean_ms(times_s: Sequence[float]) -> float | None:
    return 1e3 * float(np.mean(times_s)) if times_s else None


def _ms(times_s: Sequence[float], *percents: float) -> tuple[float | None, ...]:
    return percentiles_ms(times_s, *percents) if times_s else (None,) * len(percents)
