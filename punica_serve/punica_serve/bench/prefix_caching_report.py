"""The report of `bench prefix-caching`: each load without sharing and with it, the goals, and the host's time."""

import statistics
from dataclasses import asdict, astuple

from rich.progress import Progress

from punica_serve.bench.goals import Goal, goals_table
from punica_serve.bench.prefix_caching import PatternResult, PatternRun, PrefixCachingSettings, loads_of, run
from punica_serve.bench.prefix_host_time import HostTime, measure_host_time
from punica_serve.bench.reference_figures import goals
from punica_serve.bench.report import Column, Report, TableData, Value, machine
from punica_serve.bench.subject import Subject

#: The shape that the goals are for.
GOAL_SHAPE = "llama-3.1-8b"

_COLUMNS = (
    Column("load", "arrivals"),
    Column("caching", "caching"),
    Column("hit_first_token_ms", "first token ms, hits", ",.1f"),
    Column("first_token_ms", "all", ",.1f"),
    Column("tokens_per_s", "tokens/s", ",.0f"),
    Column("prefill_tokens", "prefilled tokens", ",.0f"),
    Column("full_prefills", "prefixes computed", ",.1f"),
)
_RATIO_COLUMNS = (
    Column("load", "arrivals"),
    Column("hit_first_token", "first token, hits, on / off", ".2f"),
    Column("tokens_per_s", "tokens/s, on / off", ".3f"),
)
_HOST_COLUMNS = (
    Column("num_known_pages", "known pages", ",d"),
    Column("batch_size", "batch", ",d"),
    Column("step_us", "decode step µs", ".1f"),
    Column("request_us", "request µs", ".0f"),
    Column("same_groups_us", "groups µs, same requests", ".1f"),
    Column("changed_groups_us", "one joins, one leaves", ".1f"),
)


def measure_all(subject: Subject, settings: PrefixCachingSettings, progress: Progress) -> Report:
    """Measures all loads. Raises RequestFailed if any request fails."""
    rows = run(subject, settings, progress)
    return make_report(subject, settings, rows, measure_host_time(batch_size=settings.batch_size))


def make_report(
    subject: Subject, settings: PrefixCachingSettings, rows: tuple[PatternResult, ...], host: HostTime
) -> Report:
    """The tables of one run."""
    tables = [_loads_table(subject, settings, rows), _ratios_table(rows), _host_table(host)]
    if subject.on_gpu and subject.model.name == GOAL_SHAPE:
        tables.append(goals_table(_goals(settings, rows, host), "Goals (one H200, Llama-3.1-8B shape)"))
    return Report(
        name="prefix-caching",
        machine=machine(str(subject.device)),
        settings={**asdict(settings), "model": subject.model.name},
        tables=tables,
        figures={},
        facts={},
    )


def hit_first_token_s(row: PatternResult) -> tuple[float, float] | None:
    """Median first token without sharing and with it, of the requests that find pages: rounds differ in prompts only,
    so the same places in the order of arrival are compared. None if none finds any.
    """
    off, on = list[float](), list[float]()
    for one, other in zip(row.off, row.on, strict=True):
        pairs = zip(_by_arrival(one), _by_arrival(other), strict=True)
        hits = [(first_s, request_id) for first_s, request_id in pairs if request_id[0] in other.cached]
        off += [first_s for (_, first_s), _ in hits]
        on += [first_s for _, (_, first_s) in hits]
    return (statistics.median(off), statistics.median(on)) if off else None


def _by_arrival(replay: PatternRun) -> list[tuple[str, float]]:
    return sorted(replay.first_token_s.items(), key=lambda item: int(item[0]))


def _tokens_per_s(replays: tuple[PatternRun, ...]) -> float:
    return statistics.median(replay.tokens_per_s for replay in replays)


def _hits_on_over_off(row: PatternResult) -> float | None:
    """The first token of requests that find pages; None if none finds any."""
    if (hits_s := hit_first_token_s(row)) is None:
        return None
    off_s, on_s = hits_s
    return on_s / off_s


def _loads_table(subject: Subject, settings: PrefixCachingSettings, rows: tuple[PatternResult, ...]) -> TableData:
    cells: list[tuple[Value, ...]] = []
    for row in rows:
        hits_s = hit_first_token_s(row) or (None, None)
        for caching, replays, hit_s in zip(("off", "on"), (row.off, row.on), hits_s, strict=True):
            first_s = statistics.median(first for replay in replays for first in replay.first_token_s.values())
            prefilled = statistics.median(replay.num_prefill_tokens for replay in replays)
            full = statistics.median(len(replay.first_token_s) - len(replay.cached) for replay in replays)
            hit_ms = None if hit_s is None else hit_s * 1e3
            cells.append((row.load.name, caching, hit_ms, first_s * 1e3, _tokens_per_s(replays), prefilled, full))
    groups = f"{settings.num_groups} groups of {settings.group_size}, a prefix of {settings.prefix_tokens} tokens each"
    notes = (f"{groups}; medians of {settings.rounds} rounds; hits: the requests that find pages where caching is on",)
    return TableData("loads", f"prefix caching: {subject.model.name}", _COLUMNS, cells, notes)


def _ratios_table(rows: tuple[PatternResult, ...]) -> TableData:
    cells: list[tuple[Value, ...]] = [
        (row.load.name, _hits_on_over_off(row), _tokens_per_s(row.on) / _tokens_per_s(row.off)) for row in rows
    ]
    return TableData("ratios", "on over off", _RATIO_COLUMNS, cells)


def _host_table(host: HostTime) -> TableData:
    cells = [tuple[Value, ...](astuple(host))]
    notes = (
        "added to a decode step, and to a request whose whole prompt is known",
        "groups: finding the decodes that share a prefix, with `engine.shared_prefix_attention`",
    )
    return TableData("host", "host time of known pages", _HOST_COLUMNS, cells, notes)


def _goals(settings: PrefixCachingSettings, rows: tuple[PatternResult, ...], host: HostTime) -> list[Goal]:
    bounds, by_name = goals().prefix_caching, {row.load.name: row for row in rows}
    apart, _, at_once, no_reuse = (by_name[load.name] for load in loads_of(settings))
    full = max(len(replay.first_token_s) - len(replay.cached) for replay in at_once.on)
    return [
        Goal(bounds["hit_first_token"], _hits_on_over_off(apart)),
        Goal(bounds["tokens_per_s"], _tokens_per_s(apart.on) / _tokens_per_s(apart.off)),
        Goal(bounds["full_prefills"], full / settings.num_groups),
        Goal(bounds["no_reuse"], _tokens_per_s(no_reuse.on) / _tokens_per_s(no_reuse.off)),
        Goal(bounds["step_us"], host.step_us),
    ]
