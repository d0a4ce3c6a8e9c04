"""Checks the demo through the running API: `python -m punica_serve.demo.check --url http://127.0.0.1:8000`.

Asks the base model and every adapter about all integers, over REST and over one websocket, with requests mixed. An
exact answer proves that the request got its own adapter. Exit code 1: an adapter had too few exact answers, or no step
mixed enough adapters. 2: nothing answers.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Annotated, Any

import httpx
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from websockets.exceptions import WebSocketException

from punica_serve.demo.asking import TIMEOUT_S, Ask, rest, websocket
from punica_serve.demo.notations import NOTATIONS, NUM_INTEGERS, REQUIRED_SHARE, expected
from punica_serve.errors import RequestFailed
from punica_serve.links.client_errors import no_answer

REQUIRED_ADAPTERS_PER_STEP = 4

_LORA_IDS: tuple[str | None, ...] = (None, *NOTATIONS)
_POLL_INTERVAL_S = 0.2


@dataclass(slots=True)
class Tally:
    """Exact answers over one transport."""

    exact: Counter[str | None] = field(default_factory=Counter)
    #: (lora_id, integer, actual answer), for the report.
    wrong: list[tuple[str | None, int, str]] = field(default_factory=list)

    def add(self, lora_id: str | None, n: int, answer: str) -> None:
        if answer == expected(lora_id, n):
            self.exact[lora_id] += 1
        else:
            self.wrong.append((lora_id, n, answer))

    @property
    def passed(self) -> bool:
        return all(self.exact[lora_id] >= REQUIRED_SHARE * NUM_INTEGERS for lora_id in _LORA_IDS)


@dataclass(slots=True)
class Peaks:
    """The largest batch and the most adapters in one step, over the observed cluster states."""

    batch_size: int = 0
    num_adapters: int = 0

    def observe(self, cluster: dict[str, Any]) -> None:
        """Takes an answer of ``GET /v1/cluster``."""
        for gpu in cluster["gpus"]:
            self.batch_size = max(self.batch_size, gpu["batch_size_max"])
            self.num_adapters = max(self.num_adapters, gpu["num_adapters"])

    @property
    def passed(self) -> bool:
        return self.num_adapters >= REQUIRED_ADAPTERS_PER_STEP


def questions() -> Iterator[tuple[str | None, int]]:
    """Every integer for the base and every adapter; consecutive questions use different adapters."""
    return ((lora_id, n) for n in range(NUM_INTEGERS) for lora_id in _LORA_IDS)


async def ask_all(ask: Ask, in_flight: int, tally: Tally, progress: Progress, name: str) -> None:
    """Keeps ``in_flight`` questions open until all are answered."""
    task = progress.add_task(name, total=NUM_INTEGERS * len(_LORA_IDS))
    remaining = questions()

    async def work() -> None:
        for lora_id, n in remaining:
            try:
                tally.add(lora_id, n, await ask(lora_id, n))
            except RequestFailed as error:
                tally.wrong.append((lora_id, n, error.message))
            progress.advance(task)

    async with asyncio.TaskGroup() as group:
        for _ in range(in_flight):
            group.create_task(work())


@asynccontextmanager
async def watched(client: httpx.AsyncClient, peaks: Peaks) -> AsyncIterator[None]:
    """Polls the cluster while the block runs."""

    async def poll() -> None:
        while True:
            response = await client.get("/v1/cluster")
            peaks.observe(response.raise_for_status().json())
            await asyncio.sleep(_POLL_INTERVAL_S)

    async with asyncio.TaskGroup() as group:
        poller = group.create_task(poll())
        yield
        poller.cancel()


async def run(url: str, in_flight: int, tallies: dict[str, Tally], peaks: Peaks, progress: Progress) -> None:
    """Asks everything over both transports, one after the other. Raises httpx's and websockets' errors, in groups."""
    limits = httpx.Limits(max_connections=in_flight + 1)
    client = httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, limits=limits, trust_env=False)
    async with client, watched(client, peaks):
        await ask_all(rest(client), in_flight, tallies["REST"], progress, "REST")
        async with websocket(url) as ask:
            await ask_all(ask, in_flight, tallies["websocket"], progress, "websocket")


def describe_ranks(config: dict[str, Any]) -> str:
    """The ranks of an adapter_config.json: "8", or "16, 24" with a pattern."""
    return ", ".join(map(str, sorted({config["r"], *config.get("rank_pattern", {}).values()})))


def _packaged_ranks(lora_id: str | None) -> str:
    """Ranks of the packaged adapter; empty for the base, and for an adapter that was not trained."""
    with suppress(FileNotFoundError):
        config = files("punica_serve.demo") / "adapters" / str(lora_id) / "adapter_config.json"
        return describe_ranks(json.loads(config.read_text(encoding="utf-8")))
    return ""


def report(tallies: dict[str, Tally], peaks: Peaks, console: Console) -> None:
    """Prints the table, the peaks and the first wrong answers."""
    table = Table("adapter", "rank", *(f"exact over {name}" for name in tallies))
    for lora_id in _LORA_IDS:
        exact = (f"{tally.exact[lora_id]} of {NUM_INTEGERS}" for tally in tallies.values())
        table.add_row(lora_id or "(base)", _packaged_ranks(lora_id), *exact)
    console.print(table)
    console.print(f"highest batch size: {peaks.batch_size}; most adapters in one step: {peaks.num_adapters}")
    for name, tally in tallies.items():
        for lora_id, n, answer in tally.wrong[:5]:
            console.print(f"{name}, {lora_id or 'base'}, {n}: {answer!r}", markup=False)


def check(
    url: Annotated[str, typer.Option(envvar="PUNICA_URL", help="Address of the API.")] = "http://127.0.0.1:8000",
    in_flight: Annotated[int, typer.Option(min=1, help="Requests open at a time.")] = 64,
) -> None:
    """Checks all integers with the base model and every adapter through the running API."""
    console = Console()
    tallies, peaks = {"REST": Tally(), "websocket": Tally()}, Peaks()
    failure: Exception | None = None
    try:
        with Progress(console=console) as progress:
            asyncio.run(run(url, in_flight, tallies, peaks, progress))
    except* (httpx.HTTPError, OSError, WebSocketException) as group:
        failure = _first(group)
    if failure:
        console.print(str(no_answer(url, failure)), markup=False, soft_wrap=True)
        raise typer.Exit(code=2)
    report(tallies, peaks, console)
    if not (peaks.passed and all(tally.passed for tally in tallies.values())):
        raise typer.Exit(code=1)


def _first(error: Exception) -> Exception:
    return _first(error.exceptions[0]) if isinstance(error, ExceptionGroup) else error


if __name__ == "__main__":
    typer.run(check)
