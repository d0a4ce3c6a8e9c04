"""The report of `bench coldstart`: first tokens and gaps between tokens, cold and warm, goals, and a picture."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np
from rich.progress import Progress

from punica_serve.bench.coldstart import ColdstartMeasured, run
from punica_serve.bench.coldstart_phases_report import explaining_tables, page_cache_facts
from punica_serve.bench.coldstart_stream import ColdstartSettings, Source, StreamTimes
from punica_serve.bench.goals import GOAL_SHAPE, Goal, goals_table
from punica_serve.bench.percentiles import percentiles_ms
from punica_serve.bench.reference_figures import goals
from punica_serve.bench.report import Column, Report, TableData, Value, machine
from punica_serve.bench.subject import Subject
from punica_serve.numbers import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLUMNS = (
    Column("stream", "stream"),
    Column("num_arrivals", "arrivals", ",d"),
    Column("first_token_ms_mean", "first token ms", ".2f"),
    Column("first_token_ms_p50", "p50", ".2f"),
    Column("first_token_ms_p90", "p90", ".2f"),
    Column("first_token_ms_max", "max", ".2f"),
    Column("between_ms_p50", "others' gap between tokens ms, p50", ".2f"),
    Column("between_ms_p90", "p90", ".2f"),
    Column("between_ms_p99", "p99", ".2f"),
    Column("between_ms_max", "max", ".2f"),
)

_COLD: dict[Source, str] = {
    "host": "cold, in host memory",
    "packed": "cold, packed, in the page cache",
    "disk": "cold, packed on the disk",
    "files": "cold, in files",
    "http": "cold, in a store over HTTP",
    "s3": "cold, in a store over S3",
}
_STRETCH = "p99 between tokens, cold / warm"
_STORE = "first token, cold - warm, over 1.25 x the bytes' time at the store's rate and 50 ms"
_NOTE = "first token: from a request's arrival; others: requests that decode beside the stream, while it runs"


def measure_all(subject: Subject, settings: ColdstartSettings, progress: Progress) -> Report:
    """Runs both kinds of streams. Raises RequestFailed if any request fails."""
    return make_report(subject, settings, run(subject, settings, progress))


def make_report(subject: Subject, settings: ColdstartSettings, measured: ColdstartMeasured) -> Report:
    """The tables, goals and picture of one run."""
    names = ("all warm", _COLD[settings.source])
    rows = [_row(name, times) for name, times in zip(names, (measured.warm, measured.cold), strict=True)]
    title = (
        f"coldstart, {settings.mode}: {subject.model.name}, rank {settings.rank}, prompts of"
        f" {counted(settings.num_prompt_tokens, 'token')}, {counted(settings.batch_size - 1, 'request')} decoding"
    )
    tables = [TableData("streams", title, _COLUMNS, rows, (_NOTE,))]
    warm, cold = tables[0].records
    added_ms = _number(cold, "first_token_ms_mean") - _number(warm, "first_token_ms_mean")
    facts: dict[str, Value] = {"first token, cold - warm, mean ms": added_ms}
    if settings.batch_size > 1:
        facts[_STRETCH] = stretched = _number(cold, "between_ms_p99") / _number(warm, "between_ms_p99")
    if measured.store is not None:
        facts["the store's rate, GB/s"] = measured.store.rate / 1e9
        facts[_STORE] = over_store = added_ms / 1e3 / measured.store.allowed_s
    if settings.batch_size > 1 and subject.on_gpu and subject.model.name == GOAL_SHAPE:
        bounds = goals().coldstart
        found = [Goal(bounds["inter_token_stretch"], stretched)]
        if measured.store is not None:
            found.append(Goal(bounds["store"], over_store))
        if (bound := bounds.get(f"{settings.source}-{settings.rank}")) is not None:
            found.append(Goal(bound, added_ms))
        tables.append(goals_table(found))
    tables += explaining_tables(measured.warm, measured.cold)
    facts |= page_cache_facts(measured.cached)
    return Report(
        name="coldstart",
        machine=machine(str(subject.device)),
        settings={**asdict(settings), "folder": None, "model": subject.model.name},
        tables=tables,
        figures={"": lambda figure: _draw(figure, names, (measured.warm, measured.cold))},
        facts=facts,
    )


def _row(name: str, times: StreamTimes) -> tuple[Value, ...]:
    return (
        name,
        len(times.first_token_s),
        1e3 * float(np.mean(times.first_token_s)),
        *percentiles_ms(times.first_token_s, 50, 90, 100),
        *(percentiles_ms(times.between_tokens_s, 50, 90, 99, 100) if times.between_tokens_s else [None] * 4),
    )


def _number(record: dict[str, Value], key: str) -> float:
    return float(record[key] or 0.0)


def _draw(figure: "Figure", names: Sequence[str], streams: Sequence[StreamTimes]) -> None:
    """Draws the cumulative distribution of the waits."""
    figure.set_size_inches(9, 4)
    first_axes, between_axes = figure.subplots(1, 2)
    for name, times in zip(names, streams, strict=True):
        for axes, waits in ((first_axes, times.first_token_s), (between_axes, times.between_tokens_s)):
            axes.step(np.sort(waits) * 1e3, np.arange(1, len(waits) + 1) / len(waits), where="post", label=name)
    first_axes.set_title("First token of the stream's requests")
    between_axes.set_title("Between tokens of the requests beside it")
    for axes in (first_axes, between_axes):
        axes.set_xlabel("ms")
        axes.set_ylabel("share that took no longer")
        axes.legend()
