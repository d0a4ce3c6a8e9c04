"""The report of `bench coldstart-loads`."""

from dataclasses import asdict

from rich.progress import Progress

from punica_serve.bench.coldstart_loads.loads_run import LoadCost, LoadsMeasured, LoadsSettings, run_loads
from punica_serve.bench.goals import Goal, goals_table
from punica_serve.bench.reference_figures import goals
from punica_serve.bench.report import Column, Report, TableData, Value, machine
from punica_serve.bench.subject import Subject

#: The most that a load may take beside its bytes' time at the disk's own rate, and the store's.
_DISK_S, _STORE_S, _STORE_SHARE = 0.005, 0.05, 1.25

_COLUMNS = (
    Column("place", "from"),
    Column("ms", "ms", ",.1f"),
    Column("processor_ms", "processor ms", ",.1f"),
    Column("yardstick_ms", "yardstick ms", ",.1f"),
    Column("yardstick", "yardstick"),
)
_NOT_MEASURED = "not measured: the page cache could not be shown to be empty, or the disk has no direct reads"


def measure_all(subject: Subject, settings: LoadsSettings, progress: Progress) -> Report:
    """Runs all loads."""
    return make_report(subject, settings, run_loads(subject, settings, progress))


def make_report(subject: Subject, settings: LoadsSettings, measured: LoadsMeasured) -> Report:
    """One row for each place, and the goals."""
    megabytes = measured.num_bytes / 1e6
    title = f"coldstart-loads: {subject.model.name}, rank {settings.rank}, {megabytes:,.1f} MB to host memory, medians"
    bounds = goals().coldstart_loads
    found = [
        Goal(bounds["folder_over_sha"], measured.folder.wall_s / measured.sha_s),
        Goal(bounds["packed_processor"], measured.packed.processor_s / measured.folder.processor_s),
        Goal(bounds["store"], measured.store[0].wall_s / _store_bound_s(measured)),
    ]
    if measured.disk is not None:
        found.append(Goal(bounds["disk"], measured.disk[0].wall_s / _disk_bound_s(measured, measured.disk[1])))
    return Report(
        name="coldstart-loads",
        machine=machine(str(subject.device)),
        settings={**asdict(settings), "folder": None, "model": subject.model.name},
        tables=[
            TableData("loads", title, _COLUMNS, _rows(measured)),
            goals_table(found, "Goals (any Linux host)"),
        ],
    )


def _rows(measured: LoadsMeasured) -> list[tuple[Value, ...]]:
    store, store_rate = measured.store
    rows = [
        _row("folder that was never seen", measured.folder, measured.sha_s, "SHA-256 of its bytes on one core"),
        _row("packed, page cache", measured.packed, measured.folder.processor_s, "the folder's processor time"),
    ]
    if measured.disk is None:
        rows.append(("packed, disk", None, None, None, _NOT_MEASURED))
    else:
        disk, rate = measured.disk
        rows.append(_row("packed, disk", disk, _disk_bound_s(measured, rate), f"{rate / 1e9:.2f} GB/s, and 5 ms"))
    note = f"1.25 x at {store_rate / 1e9:.2f} GB/s, and 50 ms"
    return [*rows, _row("store over HTTP", store, _store_bound_s(measured), note)]


def _row(place: str, cost: LoadCost, yardstick_s: float, yardstick: str) -> tuple[Value, ...]:
    return place, 1e3 * cost.wall_s, 1e3 * cost.processor_s, 1e3 * yardstick_s, yardstick


def _disk_bound_s(measured: LoadsMeasured, rate: float) -> float:
    return measured.num_bytes / rate + _DISK_S


def _store_bound_s(measured: LoadsMeasured) -> float:
    return _STORE_SHARE * measured.num_bytes / measured.store[1] + _STORE_S
