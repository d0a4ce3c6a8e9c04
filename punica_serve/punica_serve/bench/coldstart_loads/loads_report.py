"""The report of `bench coldstart-loads`."""

from dataclasses import asdict

from rich.progress import Progress

from punica_serve.bench.coldstart_loads.load_times import PlaceTimes
from punica_serve.bench.coldstart_loads.loads_run import LoadsMeasured, LoadsSettings, StoreTimes, run_loads
from punica_serve.bench.goals import Goal, goals_table
from punica_serve.bench.reference_figures import goals
from punica_serve.bench.report import Column, Report, TableData, Value, machine
from punica_serve.bench.subject import Subject

_COLUMNS = (
    Column("place", "from"),
    Column("ms", "ms", ",.1f"),
    Column("processor_ms", "processor ms", ",.1f"),
    Column("busiest_ms", "busiest thread ms", ",.1f"),
    Column("queued_ms", "it had no core, ms", ",.1f"),
    Column("yardstick_ms", "yardstick ms", ",.1f"),
    Column("over", "over it", ".2f"),
    Column("yardstick", "yardstick"),
)
_NOTHING = (None,) * 6
_NO_DISK = "not measured: the page cache could not be shown to be empty, or the disk has no direct reads"
_NO_EXTRA = "not measured: it needs the extra `s3`"


def measure_all(subject: Subject, settings: LoadsSettings, progress: Progress) -> Report:
    """Runs all loads."""
    return make_report(subject, settings, run_loads(subject, settings, progress))


def make_report(subject: Subject, settings: LoadsSettings, measured: LoadsMeasured) -> Report:
    """One row for each place, and the goals."""
    megabytes = measured.num_bytes / 1e6
    title = f"coldstart-loads: {subject.model.name}, rank {settings.rank}, {megabytes:,.1f} MB to host memory, medians"
    bounds = goals().coldstart_loads
    found = [
        Goal(bounds["folder_over_sha"], measured.folder.over),
        Goal(bounds["packed_processor"], measured.packed.processor_s / measured.folder.processor_s),
        Goal(bounds["disk"], _over(measured.disk)),
        *(Goal(bounds["store"], _over(_served(times)), load=store) for store, times in measured.stores.items()),
    ]
    return Report(
        name="coldstart-loads",
        machine=machine(str(subject.device)),
        settings={**asdict(settings), "folder": None, "model": subject.model.name},
        tables=[
            TableData("loads", title, _COLUMNS, _rows(measured)),
            goals_table(found, "Goals (any Linux host)"),
        ],
        facts={"packed, read and checked on one core alone, processor ms": 1e3 * measured.packed.allowed_s},
    )


def _rows(measured: LoadsMeasured) -> list[tuple[Value, ...]]:
    folder, packed, disk = measured.folder, measured.packed, measured.disk
    share = packed.processor_s / folder.processor_s
    rows = [
        _row("folder that was never seen", folder, "SHA-256 of its bytes on one core"),
        ("packed, page cache", *_spent(packed), 1e3 * folder.processor_s, share, "processor time, over the folder's"),
    ]
    if disk is None:
        rows.append(("packed, disk", *_NOTHING, _NO_DISK))
    else:
        rows.append(_row("packed, disk", disk, f"{disk.rate / 1e9:.2f} GB/s, and 5 ms"))
    for store, times in measured.stores.items():
        if times is None:
            rows.append((f"store over {store}", *_NOTHING, _NO_EXTRA))
        else:
            for how, each in (("", times.meanwhile), (", packed afterwards", times.afterwards)):
                yardstick = f"1.25 x at {each.rate / 1e9:.2f} GB/s, and 50 ms"
                rows.append(_row(f"store over {store}{how}", each, yardstick))
    return rows


def _row(place: str, times: PlaceTimes, yardstick: str) -> tuple[Value, ...]:
    return place, *_spent(times), 1e3 * times.allowed_s, times.over, yardstick


def _served(times: StoreTimes | None) -> PlaceTimes | None:
    """The way that workers take."""
    return None if times is None else times.meanwhile


def _over(times: PlaceTimes | None) -> float | None:
    return None if times is None else times.over


def _spent(times: PlaceTimes) -> tuple[float, float, float, float]:
    return 1e3 * times.wall_s, 1e3 * times.processor_s, 1e3 * times.busiest_s, 1e3 * times.queued_s
