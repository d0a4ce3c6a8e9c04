"""Runs `bench control-plane`."""

import os
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.progress import Progress, TaskID

from punica_serve.bench.control_plane import frontends, hosts
from punica_serve.bench.control_plane.load_process import LoadProcess
from punica_serve.bench.control_plane.parts import ChurnEvent, PartTimes, churn_us, parts_us
from punica_serve.bench.control_plane.placement import PlacementTime, placement_times
from punica_serve.bench.control_plane.placement_report import placement_goals, placements_table
from punica_serve.bench.control_plane.queue_memory import bytes_per_queued_request
from punica_serve.bench.control_plane.scheduler_process import SchedulerProcess, idle_s
from punica_serve.bench.control_plane.settings import STAMP_S, ControlPlaneSettings, LoadSettings
from punica_serve.bench.goals import Goal, goals_table
from punica_serve.bench.reference_figures import goals
from punica_serve.bench.report import CPU_SHARE, Column, Report, TableData, Value, host_facts
from punica_serve.errors import ClusterUnavailable
from punica_serve.process.memory_tuning import tuned_gc

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_COLUMNS = (
    Column("load", "load"),
    Column("tokens_per_s", "tokens/s", ",.0f"),
    Column("requests_per_s", "requests/s", ",.0f"),
    Column("us_per_token", "scheduler CPU µs/token", ".2f"),
    CPU_SHARE,
    Column("idle_share", "cores idle", ".0%"),
    Column("p50_ms", "emit to receive p50 ms", ".1f"),
    Column("p99_ms", "p99 ms", ".1f"),
)


@dataclass(frozen=True, slots=True)
class ControlPlaneMeasured:
    """The measurements of one load."""

    name: str
    seconds: float
    cpu_s: float
    num_tokens: int
    num_ended: int
    #: Age -> number of token groups, in units of STAMP_S.
    ages: Counter[int]
    #: Idle share of the machine's cores. If it is near zero, tokens wait for a core.
    idle_share: float

    @property
    def us_per_token(self) -> float:
        return 1e6 * self.cpu_s / self.num_tokens

    def age_ms(self, share: float) -> float:
        """The age on arrival that this share of tokens does not exceed."""
        num_left = share * self.ages.total()
        for age, count in sorted(self.ages.items()):
            num_left -= count
            if num_left <= 0:
                return 1e3 * STAMP_S * age
        raise AssertionError("no token has arrived")

    @property
    def row(self) -> tuple[Value, ...]:
        return (
            self.name,
            self.num_tokens / self.seconds,
            self.num_ended / self.seconds,
            self.us_per_token,
            self.cpu_s / self.seconds,
            self.idle_share,
            self.age_ms(0.5),
            self.age_ms(0.99),
        )


def run(settings: ControlPlaneSettings, progress: Progress) -> Report:
    """Measures both loads, then placement and memory. Raises ClusterUnavailable if a process fails."""
    load_averages = os.getloadavg()
    seconds_of_load = 2 * (settings.settling_s + settings.seconds)
    task = progress.add_task("control-plane", total=round(seconds_of_load) + 3)
    with tempfile.TemporaryDirectory(prefix="punica-bench-") as folder:
        measurements = [
            _measure(settings, name, has_churn, Path(folder), partial(_wait, progress, task))
            for name, has_churn in (("steady", False), ("churn", True))
        ]
        with tuned_gc():
            parts, churn = parts_us(settings), churn_us(settings)
        progress.advance(task)
        with tuned_gc():
            placements = placement_times(settings)
        progress.advance(task)
        queued_bytes = bytes_per_queued_request(settings.num_queued, Path(folder))
        progress.advance(task)
    return Report(
        "control-plane",
        {**host_facts(), "load_average_before": load_averages[0]},
        asdict(settings),
        [
            _table(settings, measurements),
            _parts(parts),
            _churn(churn),
            placements_table(placements),
            _goals(measurements, placements, queued_bytes),
        ],
        {"": partial(_draw, measurements)},
    )


def _measure(
    settings: ControlPlaneSettings, name: str, has_churn: bool, folder: Path, wait: "partial[None]"
) -> ControlPlaneMeasured:
    with ExitStack() as stack:
        scheduler = stack.enter_context(SchedulerProcess(folder))
        scheduler.wait_until_it_listens()
        load = LoadSettings(settings, scheduler.url, scheduler.token, has_churn)
        gpus = stack.enter_context(LoadProcess(hosts.main, load))
        gpus.wait_until_ready()
        clients = stack.enter_context(LoadProcess(frontends.main, load))
        clients.wait_until_ready()
        gpus.look()
        wait(settings.settling_s)
        clients.look()
        cpu_s, idle_before_s, started_s = scheduler.figures.cpu_s, idle_s(), time.monotonic()
        wait(settings.seconds)
        arrivals = clients.look()
        cpu_s, seconds = scheduler.figures.cpu_s - cpu_s, time.monotonic() - started_s
        idle_share = (idle_s() - idle_before_s) / seconds / (os.cpu_count() or 1)
        if not arrivals.num_tokens:
            raise ClusterUnavailable(
                f"no token arrived in {seconds:.1f} s of the load {name!r}; try fewer GPUs (`--gpus`)"
            )
        return ControlPlaneMeasured(
            name, seconds, cpu_s, arrivals.num_tokens, arrivals.num_ended, arrivals.ages, idle_share
        )


def _wait(progress: Progress, task: TaskID, seconds: float) -> None:
    """Waits second by second, so that the bar moves."""
    while seconds > 0:
        time.sleep(min(seconds, 1.0))
        seconds -= 1.0
        progress.advance(task)


def _table(settings: ControlPlaneSettings, measurements: Sequence[ControlPlaneMeasured]) -> TableData:
    first, last = settings.answer_tokens
    title = (
        f"The scheduler at {settings.num_gpus} GPUs x {settings.batch_size} requests, "
        f"{settings.num_frontends} frontends, {settings.tokens_per_s:,.0f} tokens/s wanted"
    )
    notes = (
        f"churn: answers of {first} to {last} tokens, each replaced by a new request when it ends; steady: none ends",
        "where cores are rarely idle, tokens are late because processes wait for a core",
    )
    return TableData("loads", title, _COLUMNS, [measurement.row for measurement in measurements], notes)


def _parts(parts: PartTimes) -> TableData:
    """The parts of a token's cost apart from frames."""
    columns = (Column("part", "part"), Column("us_per_token", "CPU µs/token", ".3f"))
    rows: list[tuple[Value, ...]] = [
        ("decoding a report", parts.decode),
        ("Scheduler.handle", parts.handle),
        ("encoding for frontends", parts.encode),
    ]
    note = (
        "in the benchmark's own process, with reports of all GPUs in turn; the rest is sockets, event loop and frames"
    )
    return TableData("parts", "Parts of the scheduler's work per token, steady", columns, rows, (note,))


def _churn(churn: Mapping[ChurnEvent, float]) -> TableData:
    """The time of each event under churn."""
    columns = (Column("event", "event"), Column("us", "CPU µs", ".1f"))
    rows: list[tuple[Value, ...]] = [(event.value, us) for event, us in churn.items()]
    note = "means, in the benchmark's own process, with reports of all GPUs in turn"
    return TableData("churn", "Scheduler.handle of an event, churn", columns, rows, (note,))


def _goals(
    measurements: Sequence[ControlPlaneMeasured], placements: Sequence[PlacementTime], queued_bytes: float
) -> TableData:
    bounds = goals().control_plane
    found = []
    for measurement in measurements:
        found += [
            Goal(bounds["scheduler_us_per_token"], measurement.us_per_token, measurement.name),
            Goal(bounds["emit_to_receive_p99_ms"], measurement.age_ms(0.99), measurement.name),
        ]
    found += [
        *placement_goals(placements),
        Goal(bounds["kib_per_queued_request"], queued_bytes / 1024),
    ]
    return goals_table(found, "Goals of the control plane, on two cores")


def _draw(measurements: Sequence[ControlPlaneMeasured], figure: "Figure") -> None:
    """Draws the share of tokens that have arrived by each age."""
    axes = figure.subplots()
    for measurement in measurements:
        shares = [index / 1000 for index in range(1001)]
        axes.plot([measurement.age_ms(share) for share in shares], shares, label=measurement.name)
    goal_ms = goals().control_plane["emit_to_receive_p99_ms"].at_most
    assert goal_ms is not None
    axes.axvline(goal_ms, color="grey", linestyle="--", label="goal for 99%")
    axes.set(xlabel="ms from the worker's emit to the frontend's receive", ylabel="share of tokens", ylim=(0, 1))
    axes.set_xlim(left=0)
    axes.legend()
