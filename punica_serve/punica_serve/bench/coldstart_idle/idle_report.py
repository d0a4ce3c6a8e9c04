"""The report of `bench coldstart-idle`: what a load adds to the first token, beside vLLM's first tokens."""

from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
from rich.progress import Progress

from punica_serve.bench.coldstart_idle.idle_run import IdleSettings, IdleTimes, run_idle
from punica_serve.bench.coldstart_stream import Source
from punica_serve.bench.reference_figures import peers
from punica_serve.bench.report import Column, Report, TableData, Value, machine
from punica_serve.bench.subject import Subject

_TITLES: dict[Source, str] = {"host": "host memory", "packed": "packed file", "files": "folder"}
_PEER_COLUMNS = (
    Column("place", "adapter"),
    Column("first_token_ms", "first token ms", ".1f"),
)


def measure_all(subject: Subject, settings: IdleSettings, progress: Progress) -> Report:
    """Runs all modes. Raises RequestFailed if any request fails."""
    return make_report(subject, settings, run_idle(subject, settings, progress))


def make_report(subject: Subject, settings: IdleSettings, times: Sequence[IdleTimes]) -> Report:
    """One row for each mode, rank and prompt."""
    columns = (
        Column("mode", "cold_start"),
        Column("rank", "rank", "d"),
        Column("num_prompt_tokens", "prompt", "d"),
        Column("warm_ms", "warm ms", ".2f"),
        *(Column(f"{source}_added_ms", f"added from {_TITLES[source]}", "+.2f") for source in settings.sources),
    )
    rows = [_row(own, settings.sources) for own in times]
    title = f"coldstart-idle: {subject.model.name}, first tokens, {settings.num_arrivals} requests each, means"
    peer = peers().coldstart_idle
    beside = f"first token, prompt of {peer.num_prompt_tokens} tokens, rank {peer.rank}, {peer.date}"
    return Report(
        name="coldstart-idle",
        machine=machine(str(subject.device)),
        settings={**asdict(settings), "folder": None, "model": subject.model.name},
        tables=[
            TableData("first_tokens", title, columns, rows, ("added: to the mean of warm requests",)),
            TableData("peer", beside, _PEER_COLUMNS, list(peer.first_token_ms.items()), (peer.source,)),
        ],
    )


def _row(own: IdleTimes, sources: Sequence[Source]) -> tuple[Value, ...]:
    warm_ms = 1e3 * float(np.mean(own.warm_s))
    added = (1e3 * float(np.mean(own.cold_s[source])) - warm_ms for source in sources)
    return (own.mode, own.rank, own.num_prompt_tokens, warm_ms, *added)
