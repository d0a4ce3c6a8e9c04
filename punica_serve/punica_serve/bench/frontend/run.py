"""Runs `bench frontend`."""

import asyncio
import secrets
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.progress import Progress

from punica_serve.bench.free_ports import free_port
from punica_serve.bench.frontend.played_scheduler import PlayedScheduler
from punica_serve.bench.frontend.processes import clients_process, frontend_process
from punica_serve.bench.frontend.python_speed import loop_ns
from punica_serve.bench.frontend.settings import WARM_UP_S, FrontendSettings
from punica_serve.bench.report import CPU_SHARE, Column, Report, TableData, machine
from punica_serve.errors import ClusterUnavailable
from punica_serve.links.hello import listen
from punica_serve.protocol import FrontendToScheduler

_START_TIMEOUT_S = 60.0
_TICK_S = 0.1

_COLUMNS = (
    Column("api", "API"),
    Column("num_connections", "connections"),
    Column("num_requests", "requests"),
    Column("answer_tokens", "tokens each"),
    Column("num_adapters", "adapters"),
    Column("tokens_per_s", "tokens/s", ",.0f"),
    Column("us_per_token", "frontend CPU µs/token", ".1f"),
    Column("loop_ns", "Python loop, ns", ".0f"),
    CPU_SHARE,
    Column("resident_mib", "memory MiB", ".0f"),
)


@dataclass(frozen=True, slots=True)
class FrontendMeasured:
    """The frontend process's time for a number of tokens."""

    seconds: float
    cpu_s: float
    num_tokens: int
    resident_bytes: int


def run(settings: FrontendSettings, progress: Progress) -> Report:
    """Raises ClusterUnavailable if the processes don't start, or stream nothing."""
    task = progress.add_task("streaming", total=round(settings.seconds / _TICK_S))
    loop_before_ns = loop_ns()
    measured = asyncio.run(_measure(settings, lambda: progress.advance(task)))
    row = (
        settings.api,
        settings.num_connections,
        settings.num_requests,
        settings.answer_tokens,
        settings.num_adapters,
        measured.num_tokens / measured.seconds,
        1e6 * measured.cpu_s / measured.num_tokens,
        (loop_before_ns + loop_ns()) / 2,
        measured.cpu_s / measured.seconds,
        measured.resident_bytes / (1 << 20),
    )
    notes = (
        "User and system time of the frontend's process alone, including its link to the scheduler and all clients.",
        "Python loop: CPU time of a round of a fixed loop, before and after; compare times of runs with equal ones.",
    )
    table = TableData("frontend", "A frontend that streams", _COLUMNS, [row], notes)
    return Report("frontend", machine("cpu"), asdict(settings), [table])


async def _measure(settings: FrontendSettings, tick: Callable[[], object]) -> FrontendMeasured:
    token = secrets.token_hex(16)
    scheduler = PlayedScheduler(token, settings.num_gpus)
    port = free_port()
    bodies = (settings.prompt_tokens, settings.answer_tokens, settings.num_adapters)
    load = (settings.api, port, settings.num_sockets, settings.requests_per_socket, *bodies)
    async with listen("127.0.0.1", 0, FrontendToScheduler, scheduler.session) as scheduler_port:
        url = f"ws://127.0.0.1:{scheduler_port}"
        with (
            tempfile.TemporaryDirectory() as folder,
            frontend_process(Path(folder), port, url, token, settings.num_adapters) as process,
            clients_process(*load),
        ):
            await _until(lambda: scheduler.num_requests == settings.num_requests)
            async with asyncio.TaskGroup() as group:
                stepping = group.create_task(scheduler.keep_stepping(settings.step_s))
                await asyncio.sleep(WARM_UP_S)
                started_s, cpu_s, num_tokens = time.monotonic(), process.cpu_s, scheduler.num_tokens
                while time.monotonic() - started_s < settings.seconds:
                    await asyncio.sleep(_TICK_S)
                    tick()
                stepping.cancel()
            seconds, num_tokens = time.monotonic() - started_s, scheduler.num_tokens - num_tokens
            if not num_tokens:
                reason = "the frontend or its clients stopped; see their messages above"
                raise ClusterUnavailable(f"no token was sent in {seconds:.1f} s: {reason}")
            return FrontendMeasured(
                seconds=seconds,
                cpu_s=process.cpu_s - cpu_s,
                num_tokens=num_tokens,
                resident_bytes=process.resident_bytes,
            )


async def _until(holds: Callable[[], bool]) -> None:
    try:
        async with asyncio.timeout(_START_TIMEOUT_S):
            while not holds():  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(_TICK_S)
    except TimeoutError:
        raise ClusterUnavailable("the frontend and its clients did not start; see their messages above") from None
