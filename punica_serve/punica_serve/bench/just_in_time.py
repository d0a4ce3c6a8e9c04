"""Runs `bench just-in-time`: measures the time from an upload to its first token, and the effect on other streams."""

import asyncio
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
from rich.progress import Progress
from websockets.asyncio.client import ClientConnection

from punica_serve.adapters.random_adapter import write_random_adapter
from punica_serve.base_model.config_json import read_model_config
from punica_serve.bench.percentiles import percentiles_ms
from punica_serve.bench.report import Column, Report, TableData, Value, host_facts
from punica_serve.config.cluster import load_config
from punica_serve.errors import RequestFailed
from punica_serve.links.client_errors import no_answer
from punica_serve.links.dial import dial
from punica_serve.links.https_client import client_context

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GOAL_S = 1.0
_TIMEOUT_S = 60.0
_WARM_UP_S = 1.0
#: Streams end and are restarted; the wait for a first token is not a gap in a stream.
_LONG = {"op": "generate", "prompt": "42", "ignore_eos": True, "max_tokens": 900}

_COLUMNS = (
    Column("uploads", "uploads"),
    Column("upload_p50_s", "answered, p50 s", ".3f"),
    Column("first_token_p50_s", "first token, p50 s", ".3f"),
    Column("first_token_max_s", "slowest s", ".3f"),
)
_GAP_COLUMNS = (
    Column("phase", "other streams"),
    Column("frames", "frames", ",d"),
    Column("p50_ms", "between frames, p50 ms", ".1f"),
    Column("p99_ms", "p99 ms", ".1f"),
    Column("p999_ms", "p99.9 ms", ".1f"),
    Column("max_ms", "longest ms", ".1f"),
)
_GAP_PERCENTS = (50, 99, 99.9, 100)


@dataclass(frozen=True, slots=True)
class JustInTimeSettings:
    url: str
    config: Path
    num_uploads: int
    num_streams: int
    rank: int
    #: Time before each upload, and after the last, to measure the other streams without uploads.
    rest_s: float


@dataclass(frozen=True, slots=True)
class Interval:
    """A time interval on the monotonic clock."""

    began_s: float
    ended_s: float

    @property
    def seconds(self) -> float:
        return self.ended_s - self.began_s

    def touches(self, other: "Interval") -> bool:
        return self.began_s < other.ended_s and other.began_s < self.ended_s


@dataclass(frozen=True, slots=True)
class Upload:
    """Times from an upload's first byte to the adapter's first token."""

    span: Interval
    #: Seconds until the registration was answered.
    answered_s: float


class Gaps:
    """Times between frames of the same stream."""

    def __init__(self) -> None:
        self.spans: list[Interval] = []
        self._last_s: dict[str, float] = {}

    def frame(self, request_id: str, now_s: float, *, is_last: bool) -> None:
        if (last_s := self._last_s.pop(request_id, None)) is not None:
            self.spans.append(Interval(last_s, now_s))
        if not is_last:
            self._last_s[request_id] = now_s

    def divided(self, uploads: Sequence[Upload]) -> tuple[list[float], list[float]]:
        """Gaps in seconds, split into those outside uploads and those that overlap one."""
        quiet: list[float] = []
        beside: list[float] = []
        for gap in self.spans:
            (beside if any(gap.touches(upload.span) for upload in uploads) else quiet).append(gap.seconds)
        return quiet, beside


def run(settings: JustInTimeSettings, key: str | None, progress: Progress) -> Report:
    """Raises RequestFailed, and what ``dial`` raises if the frontend does not answer or refuses."""
    task = progress.add_task("uploading", total=settings.num_uploads)
    try:
        uploads, gaps = asyncio.run(_measure(settings, key, lambda: progress.advance(task)))
    except httpx.HTTPError as error:
        raise no_answer(settings.url, error) from error
    shown = {**asdict(settings), "config": str(settings.config)}
    return make_report(uploads, *gaps.divided(uploads), shown)


def make_report(
    uploads: Sequence[Upload], quiet: Sequence[float], beside: Sequence[float], settings: Mapping[str, Any]
) -> Report:
    """``quiet`` and ``beside`` are gaps of other streams, in seconds."""
    first_tokens = [upload.span.seconds for upload in uploads]
    row = (
        len(uploads),
        statistics.median(upload.answered_s for upload in uploads),
        statistics.median(first_tokens),
        max(first_tokens),
    )
    verdict = "pass" if max(first_tokens) < GOAL_S else "FAIL"
    note = f"{verdict}  every first token within {GOAL_S:g} s of the start of its upload"
    shown = [percentiles_ms(gaps, *_GAP_PERCENTS) for gaps in (quiet, beside)]
    ratios = (b / q for q, b in zip(*shown, strict=True))
    rows: list[tuple[Value, ...]] = [
        ("between uploads", len(quiet), *shown[0]),
        ("beside uploads", len(beside), *shown[1]),
        ("beside / between", None, *ratios),
    ]
    title = f"{settings['num_streams']} other streams meanwhile, with and without uploads"
    tables = [
        TableData("uploads", "From an upload to its first token", _COLUMNS, [row], (note,)),
        TableData("gaps", title, _GAP_COLUMNS, rows),
    ]
    figures = {"": lambda figure: _draw(figure, first_tokens, quiet, beside)}
    return Report("just-in-time", host_facts(), settings, tables, figures)


def _draw(figure: "Figure", first_tokens: Sequence[float], quiet: Sequence[float], beside: Sequence[float]) -> None:
    """Draws every upload, and the distribution of gaps between the other streams' frames."""
    figure.set_size_inches(9, 4)
    uploads, others = figure.subplots(1, 2)
    uploads.plot(range(1, len(first_tokens) + 1), first_tokens, "o")
    uploads.axhline(GOAL_S, color="grey", linestyle=":")
    uploads.set_ylim(bottom=0.0)
    uploads.set_xlabel("upload")
    uploads.set_ylabel("to the first token, s")
    for name, gaps in (("between uploads", quiet), ("beside uploads", beside)):
        others.step(1e3 * np.sort(gaps), 1 - np.arange(len(gaps)) / len(gaps), where="post", label=name)
    others.set_xscale("log")
    others.set_yscale("log")
    others.set_xlabel("between frames of other streams, ms")
    others.set_ylabel("share that took longer")
    others.legend()


async def _measure(
    settings: JustInTimeSettings, key: str | None, tick: Callable[[], object]
) -> tuple[list[Upload], Gaps]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    gaps, uploads = Gaps(), list[Upload]()
    with tempfile.TemporaryDirectory() as folder:
        adapters = _random_adapters(Path(folder), settings)
        async with (
            httpx.AsyncClient(
                base_url=settings.url,
                headers=headers,
                timeout=_TIMEOUT_S,
                verify=client_context(),
                trust_env=False,
            ) as client,
            await dial(settings.url, "/v1/generate/stream", key) as socket,
        ):
            # A client's first request imports a lot, which would delay reading the streams here.
            _check(await client.get("/health"))
            watching = asyncio.create_task(_keep_streaming(socket, settings.num_streams, gaps))
            try:
                await asyncio.sleep(_WARM_UP_S)
                gaps.spans.clear()
                for number, adapter in enumerate(adapters):
                    await asyncio.sleep(settings.rest_s)
                    uploads.append(await _upload(client, f"just-in-time-{number}", adapter))
                    tick()
                await asyncio.sleep(settings.rest_s)
            finally:
                watching.cancel()
                await asyncio.wait((watching,))
            for number in range(len(uploads)):
                await client.delete(f"/v1/adapters/just-in-time-{number}")
    return uploads, gaps


def _random_adapters(folder: Path, settings: JustInTimeSettings) -> list[Path]:
    """Adapters with bytes that the cluster has never seen."""
    model = read_model_config(load_config(settings.config).engine.model)
    seed = time.time_ns() % (1 << 32)
    return [
        write_random_adapter(folder / str(number), model, rank=settings.rank, seed=seed + number)
        for number in range(settings.num_uploads)
    ]


async def _upload(client: httpx.AsyncClient, name: str, folder: Path) -> Upload:
    names = ("adapter_config.json", "adapter_model.safetensors")
    files = {file: (file, (folder / file).read_bytes()) for file in names}
    began_s = time.monotonic()
    _check(await client.post("/v1/adapters", params={"name": name}, files=files))
    answered_s = time.monotonic() - began_s
    body = {"prompt": "42", "lora_id": name, "max_tokens": 4, "ignore_eos": True, "stream": True}
    async with client.stream("POST", "/v1/generate", json=body) as response:
        if response.is_error:
            await response.aread()
        _check(response)
        await anext(line async for line in response.aiter_lines() if line.startswith("data: "))
        return Upload(Interval(began_s, time.monotonic()), answered_s)


def _check(response: httpx.Response) -> None:
    if response.is_error:
        raise RequestFailed(f"{response.request.url.path} answered {response.status_code}: {response.text[:500]}")


async def _keep_streaming(socket: ClientConnection, num_streams: int, gaps: Gaps) -> None:
    """Keeps long answers streaming until cancelled."""
    names = map(str, itertools.count())
    for _ in range(num_streams):
        await socket.send(json.dumps({**_LONG, "request_id": next(names)}))
    async for message in socket:
        frame: dict[str, Any] = json.loads(message)
        is_last = frame["finish_reason"] is not None
        gaps.frame(frame["request_id"], time.monotonic(), is_last=is_last)
        if is_last:
            await socket.send(json.dumps({**_LONG, "request_id": next(names)}))
