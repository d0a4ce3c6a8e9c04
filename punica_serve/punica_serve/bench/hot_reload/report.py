"""What hot-reload leaves behind: answers, reloads, what the cluster took meanwhile, verdicts, and a picture."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from punica_serve.bench.hot_reload.footprint import Footprint
from punica_serve.bench.hot_reload.load import Answer
from punica_serve.bench.hot_reload.reloads import CHANGING, Reload
from punica_serve.bench.hot_reload.versions import Verdict
from punica_serve.bench.report import Column, Report, TableData, Value, host_facts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Of the reloads, after which caches and allocators have what they need: what they take later is a leak.
WARM_UP_SHARE = 0.3
#: What a process may have grown by since then: of 140 adapters that leaked, each would be 60 kB on the demo's model.
MAX_GROWTH_BYTES = 8 << 20
#: Of the requests in 100, one may be sent so late, and the clock has still been kept.
_LATE_S = 0.1

_ANSWER_COLUMNS = (
    Column("adapter", "adapter"),
    Column("requests", "requests", ",d"),
    *(Column(verdict.value, verdict.value, ",d") for verdict in Verdict),
    Column("p50_ms", "answered, p50 ms", ",.0f"),
    Column("p99_ms", "p99 ms", ",.0f"),
    Column("max_ms", "slowest ms", ",.0f"),
)
_LOAD_COLUMNS = (
    Column("asked_per_s", "asked for, requests/s", ",.1f"),
    Column("sent_per_s", "sent", ",.1f"),
    Column("late_p99_ms", "sent late, p99 ms", ",.0f"),
    Column("reloads", "reloads", ",d"),
    Column("reloads_per_s", "a second", ".2f"),
    Column("reload_p50_ms", "answered, p50 ms", ",.0f"),
    Column("reload_max_ms", "slowest ms", ",.0f"),
)
_FOOTPRINT_COLUMNS = (
    Column("what", "what"),
    Column("warm", "warm", ",.1f"),
    Column("last", "at the end", ",.1f"),
    Column("grown", "grown", "+,.1f"),
    Column("cpu_ms_per_request", "CPU ms/request", ".2f"),
    Column("cpu_share", "of one core", ".0%"),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """One run."""

    answers: Sequence[Answer]
    #: The first few answers that are not as they should be, in words.
    wrong: Sequence[str]
    reloads: Sequence[Reload]
    #: The first from before the load, the last from after it, when the cluster had come to rest.
    footprints: Sequence[Footprint]
    seconds: float

    @property
    def warm(self) -> Footprint:
        return self.footprints[round(WARM_UP_SHARE * (len(self.footprints) - 1))]

    @property
    def grown_bytes(self) -> dict[str, int]:
        """Of each process, since it was warm."""
        last = self.footprints[-1].resident_bytes
        return {name: last[name] - num_bytes for name, num_bytes in self.warm.resident_bytes.items()}


def make_report(measured: Measured, settings: Mapping[str, Any], rate_per_s: float) -> Report:
    """Tables, the picture, and as failures all that is not as promised."""
    names = sorted({answer.lora_id for answer in measured.answers})
    rows = [_answer_row(name, [a for a in measured.answers if a.lora_id == name]) for name in names]
    note = "stale: wholly of a version that the name no longer meant; mixed: of no single version"
    load = _load_row(measured, rate_per_s)
    tables = [
        TableData(
            "answers",
            f"Five adapters, {CHANGING!r} of them registered anew all the time",
            _ANSWER_COLUMNS,
            rows,
            (note,),
        ),
        TableData("load", "By the clock", _LOAD_COLUMNS, [load], (_kept(load),)),
        TableData(
            "footprint", "What the cluster takes (processes: MiB)", _FOOTPRINT_COLUMNS, _footprint_rows(measured)
        ),
    ]
    figures = {"": lambda figure: _draw(figure, measured)}
    return Report("hot-reload", host_facts(), settings, tables, figures, failures=_failures(measured, len(names)))


def _answer_row(name: str, answers: Sequence[Answer]) -> tuple[Value, ...]:
    """Times count from when a request was due."""
    counts = [sum(answer.verdict is verdict for answer in answers) for verdict in Verdict]
    waits_ms = [1e3 * (answer.ended_s - answer.due_s) for answer in answers]
    return (name, len(answers), *counts, *(float(np.percentile(waits_ms, q)) for q in (50, 99, 100)))


def _load_row(measured: Measured, rate_per_s: float) -> tuple[float, ...]:
    late_ms = [1e3 * (answer.sent_s - answer.due_s) for answer in measured.answers]
    reloads_ms = [1e3 * (reload.registered_s - reload.began_s) for reload in measured.reloads]
    num_reloads = len(reloads_ms) - 1  # the first registration is none
    return (
        rate_per_s,
        len(measured.answers) / measured.seconds,
        float(np.percentile(late_ms, 99)),
        num_reloads,
        num_reloads / measured.seconds,
        float(np.median(reloads_ms)),
        max(reloads_ms),
    )


def _kept(load: tuple[float, ...]) -> str:
    asked_per_s, _, late_p99_ms, *_ = load
    if late_p99_ms <= 1e3 * _LATE_S:
        return f"The clock was kept: {asked_per_s:g} requests/s."
    return f"The clock was not kept: this machine does not take {asked_per_s:g} requests/s."


def _footprint_rows(measured: Measured) -> list[tuple[Value, ...]]:
    first, warm, *_, last = measured.footprints[0], measured.warm, measured.footprints[-1]
    rows: list[tuple[Value, ...]] = []
    for name, num_bytes in warm.resident_bytes.items():
        mib = [num_bytes / (1 << 20), last.resident_bytes[name] / (1 << 20)]
        cpu_s = measured.footprints[-2].cpu_s[name] - first.cpu_s[name]
        cost = (1e3 * cpu_s / len(measured.answers), cpu_s / measured.seconds)
        rows.append((name, *mib, mib[1] - mib[0], *cost))
    for what, counts in {
        "adapters on the fullest GPU": (warm.num_on_gpu, last.num_on_gpu),
        "adapters in the store": (warm.num_stored, last.num_stored),
        "adapters downloaded": (warm.num_downloaded, last.num_downloaded),
    }.items():
        rows.append((what, *counts, counts[1] - counts[0], None, None))
    return rows


def _failures(measured: Measured, num_adapters: int) -> list[str]:
    failures = list(measured.wrong)
    failures += [
        f"{name} grew by {grown / (1 << 20):.1f} MiB"
        for name, grown in measured.grown_bytes.items()
        if grown > MAX_GROWTH_BYTES
    ]
    if (most := measured.footprints[-1].most_copies) > num_adapters:
        failures.append(f"{most} adapters are left somewhere, of {num_adapters}")
    return failures


def _draw(figure: "Figure", measured: Measured) -> None:
    """How long answers took, and what processes had grown by, over the run."""
    times, growth = figure.subplots(2, 1)
    for verdict in Verdict:
        some = [answer for answer in measured.answers if answer.verdict is verdict]
        if some:
            waits_ms = [1e3 * (answer.ended_s - answer.due_s) for answer in some]
            times.plot([answer.due_s for answer in some], waits_ms, ".", markersize=2, label=f"{len(some):,} {verdict}")
    times.plot(
        [reload.began_s for reload in measured.reloads],
        [1e3 * (reload.registered_s - reload.began_s) for reload in measured.reloads],
        "x",
        markersize=3,
        label=f"{len(measured.reloads) - 1:,} reloads",
    )
    times.set_yscale("log")
    times.set_xlabel("s")
    times.set_ylabel("answered after ms")
    times.legend(loc="upper right")
    for name in measured.warm.resident_bytes:
        grown = [(f.resident_bytes[name] - measured.warm.resident_bytes[name]) / (1 << 20) for f in measured.footprints]
        growth.plot([f.num_reloads for f in measured.footprints], grown, label=name)
    growth.axhline(MAX_GROWTH_BYTES / (1 << 20), color="grey", linestyle=":")
    growth.set_xlabel("reloads")
    growth.set_ylabel("memory grown by MiB")
    growth.legend(loc="lower right")
