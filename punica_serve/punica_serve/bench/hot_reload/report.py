"""The report of `bench hot-reload`: answers, reloads, resource use, verdicts, and a picture."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from punica_serve.bench.hot_reload.footprint import Footprint
from punica_serve.bench.hot_reload.load import JudgedAnswer
from punica_serve.bench.hot_reload.reloads import CHANGING, Reload
from punica_serve.bench.hot_reload.versions import Verdict
from punica_serve.bench.percentiles import percentiles_ms
from punica_serve.bench.report import CPU_SHARE, Column, Report, TableData, Value, host_facts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Share of the reloads after which caches and allocators are warm: any later growth is a leak.
WARM_UP_SHARE = 0.3
#: Share of the reloads over which the lowest memory counts: a frontend's swings by a few MiB, since it returns free
#: pages every 10 s.
_WINDOW_SHARE = 0.2
#: Allowed growth of a process since then; if 100 adapters leaked, each would be 60 kB on the demo's model.
MAX_GROWTH_BYTES = 6 << 20
#: The clock was kept if at most one request in 100 was sent this late.
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
    Column("asked_per_s", "target, requests/s", ",.1f"),
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
    CPU_SHARE,
)


@dataclass(frozen=True, slots=True)
class HotReloadMeasured:
    """The measurements of one run."""

    answers: Sequence[JudgedAnswer]
    #: The first few wrong answers, described.
    wrong: Sequence[str]
    reloads: Sequence[Reload]
    #: The first is from before the load, the last from after it, when the cluster had settled.
    footprints: Sequence[Footprint]
    seconds: float

    @property
    def warm(self) -> Footprint:
        return self.footprints[round(WARM_UP_SHARE * (len(self.footprints) - 1))]

    @property
    def warm_bytes(self) -> dict[str, int]:
        """Memory of each process once it was warm."""
        warm = round(WARM_UP_SHARE * (len(self.footprints) - 1))
        return _lowest(self.footprints[warm : warm + self._window])

    @property
    def last_bytes(self) -> dict[str, int]:
        """Memory of each process at the end."""
        return _lowest(self.footprints[-self._window :])

    @property
    def grown_bytes(self) -> dict[str, int]:
        """Growth of each process since it was warm."""
        last = self.last_bytes
        return {name: last[name] - num_bytes for name, num_bytes in self.warm_bytes.items()}

    @property
    def _window(self) -> int:
        return max(1, round(_WINDOW_SHARE * len(self.footprints)))


def _lowest(footprints: Sequence[Footprint]) -> dict[str, int]:
    return {name: min(each.resident_bytes[name] for each in footprints) for name in footprints[0].resident_bytes}


def make_report(measured: HotReloadMeasured, settings: Mapping[str, Any], rate_per_s: float) -> Report:
    """The tables and picture, with every broken promise as a failure."""
    names = sorted({answer.lora_id for answer in measured.answers})
    rows = [_answer_row(name, [a for a in measured.answers if a.lora_id == name]) for name in names]
    note = "stale: entirely from a version that the name no longer meant; mixed: not from any single version"
    load = _load_row(measured, rate_per_s)
    tables = [
        TableData(
            "answers",
            f"Five adapters, with {CHANGING!r} reloaded all the time",
            _ANSWER_COLUMNS,
            rows,
            (note,),
        ),
        TableData("load", "Load, by the clock", _LOAD_COLUMNS, [load], (_kept(load),)),
        TableData("footprint", "Resource use (processes: MiB)", _FOOTPRINT_COLUMNS, _footprint_rows(measured)),
    ]
    figures = {"": lambda figure: _draw(figure, measured)}
    return Report("hot-reload", host_facts(), settings, tables, figures, failures=_failures(measured, len(names)))


def _answer_row(name: str, answers: Sequence[JudgedAnswer]) -> tuple[Value, ...]:
    """Times count from when a request was due."""
    counts = [sum(answer.verdict is verdict for answer in answers) for verdict in Verdict]
    waits_s = [answer.ended_s - answer.due_s for answer in answers]
    return (name, len(answers), *counts, *percentiles_ms(waits_s, 50, 99, 100))


def _load_row(measured: HotReloadMeasured, rate_per_s: float) -> tuple[float, ...]:
    late_s = [answer.sent_s - answer.due_s for answer in measured.answers]
    reloads_s = [reload.registered_s - reload.began_s for reload in measured.reloads]
    num_reloads = len(reloads_s) - 1  # the first registration is not a reload
    return (
        rate_per_s,
        len(measured.answers) / measured.seconds,
        *percentiles_ms(late_s, 99),
        num_reloads,
        num_reloads / measured.seconds,
        *percentiles_ms(reloads_s, 50, 100),
    )


def _kept(load: tuple[float, ...]) -> str:
    asked_per_s, _, late_p99_ms, *_ = load
    if late_p99_ms <= 1e3 * _LATE_S:
        return f"The clock was kept: {asked_per_s:g} requests/s."
    return f"The clock was not kept: this machine can't sustain {asked_per_s:g} requests/s."


def _footprint_rows(measured: HotReloadMeasured) -> list[tuple[Value, ...]]:
    first, warm, *_, last = measured.footprints[0], measured.warm, measured.footprints[-1]
    last_bytes = measured.last_bytes
    rows: list[tuple[Value, ...]] = []
    for name, num_bytes in measured.warm_bytes.items():
        mib = [num_bytes / (1 << 20), last_bytes[name] / (1 << 20)]
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


def _failures(measured: HotReloadMeasured, num_adapters: int) -> list[str]:
    failures = list(measured.wrong)
    failures += [
        f"{name} grew by {grown / (1 << 20):.1f} MiB"
        for name, grown in measured.grown_bytes.items()
        if grown > MAX_GROWTH_BYTES
    ]
    if (most := measured.footprints[-1].most_copies) > num_adapters:
        failures.append(f"{most} adapters are left somewhere, of {num_adapters}")
    return failures


def _draw(figure: "Figure", measured: HotReloadMeasured) -> None:
    """Draws the response times, and the growth of processes, over the run."""
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
    for name, num_bytes in measured.warm_bytes.items():
        grown = [(f.resident_bytes[name] - num_bytes) / (1 << 20) for f in measured.footprints]
        growth.plot([f.num_reloads for f in measured.footprints], grown, label=name)
    growth.axhline(MAX_GROWTH_BYTES / (1 << 20), color="grey", linestyle=":")
    growth.set_xlabel("reloads")
    growth.set_ylabel("memory grown by MiB")
    growth.legend(loc="lower right")
