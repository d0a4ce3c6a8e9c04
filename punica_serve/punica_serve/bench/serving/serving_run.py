"""Runs `bench serving`: each workload and population through each API, on a server or a cluster of its own."""

import asyncio
import secrets
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.progress import Progress

from punica_serve.base_model.model_config import ModelConfig
from punica_serve.bench.process_figures import ProcessFigures
from punica_serve.bench.serving.http_stream import HttpClient
from punica_serve.bench.serving.listed_model import base_name
from punica_serve.bench.serving.load_loops import Client, LoadRun, closed_loop, long_prompts, poisson
from punica_serve.bench.serving.served_times import LongPromptResult, ServingResult, beside_long_prompts, result_of
from punica_serve.bench.serving.serving_cluster import serving_cluster, with_dummies
from punica_serve.bench.serving.serving_settings import REQUEST_TIMEOUT_S, ApiName, ServingSettings
from punica_serve.bench.serving.serving_workloads import (
    GROUP_SIZE,
    PopulationName,
    ServedRequest,
    WorkloadName,
    long_requests,
    num_adapters,
    requests_of,
)
from punica_serve.bench.serving.socket_stream import SocketClient
from punica_serve.bench.token_bar import TokenBar
from punica_serve.config.cluster import ClusterConfig
from punica_serve.errors import ConfigError, RequestFailed

#: Requests at once while every adapter is used for the first time, before the clock starts.
_WARM_UP_CLIENTS = 8


@dataclass(frozen=True, slots=True)
class Server:
    """The server that is measured."""

    url: str
    #: Its name for the base model.
    base_name: str
    #: Its frontends, if it is a cluster of ours on this machine.
    frontends: Sequence[ProcessFigures] = ()


@dataclass(frozen=True, slots=True)
class ServingRow:
    """One run's place in the tables, and its results."""

    workload: WorkloadName
    population: PopulationName
    api: ApiName
    result: ServingResult
    #: CPU time of all frontends for each token; None of a server that is not ours.
    frontend_us_per_token: float | None
    #: Times of the load beside long prompts.
    long_prompts: LongPromptResult | None = None


def run_all(
    config: ClusterConfig, model: ModelConfig, settings: ServingSettings, key: str | None, progress: Progress
) -> list[ServingRow]:
    """Raises ConfigError, ClusterUnavailable, RequestFailed and Unauthorized."""
    _check_one_engine(config, settings)
    context = config.engine.context_of(model)
    loads = {
        (workload, population): requests_of(
            workload, population, count, vocab_size=model.vocab_size, max_context=context
        )
        for workload, count in zip(settings.workloads, settings.num_requests, strict=True)
        for population in settings.populations
    }
    long = {
        population: long_requests(population, settings.long_prompt, vocab_size=model.vocab_size, max_context=context)
        for population in settings.populations
        if settings.long_prompt is not None
    }
    count = max(map(num_adapters, loads.values()))
    if settings.url is None:
        config = with_dummies(config, model, num_adapters=count, rank=settings.rank, batch_size=settings.batch_size)
    rows: list[ServingRow] = []
    if settings.served_apis:
        with _server(config, model, settings, key) as server:
            rows += asyncio.run(_measure_all(server, settings, loads, long, key, progress))
    if "engine" in settings.apis:
        rows += _measure_engine(config, model, settings, loads, count, progress)
    return rows


def _check_one_engine(config: ClusterConfig, settings: ServingSettings) -> None:
    """Raises ConfigError for a cluster that can't be compared with the bare engine."""
    num_workers = len(config.runner.workers)
    if "engine" in settings.apis and settings.served_apis and num_workers > 1:
        message = f"`--apis engine` compares a cluster with one engine, but `runner.devices` has {num_workers} workers"
        raise ConfigError(f"{message}; name a config with one, or leave `engine` out", param="apis")


@contextmanager
def _server(config: ClusterConfig, model: ModelConfig, settings: ServingSettings, key: str | None) -> Iterator[Server]:
    """The server at the settings' URL, or a cluster that runs while the context is open."""
    if settings.url is not None:
        yield Server(settings.url.rstrip("/"), base_name(settings.url, key))
        return
    with tempfile.TemporaryDirectory() as folder, serving_cluster(config, model, Path(folder)) as cluster:
        frontends = [figures for name, figures in cluster.processes.items() if name.startswith("frontend")]
        yield Server(cluster.url, config.engine.served_name, frontends)


_Loads = Mapping[tuple[WorkloadName, PopulationName], Sequence[ServedRequest]]
#: The long prompts beside them, where there are any.
_Long = Mapping[PopulationName, Iterator[ServedRequest]]


async def _measure_all(
    server: Server, settings: ServingSettings, loads: _Loads, long: _Long, key: str | None, progress: Progress
) -> list[ServingRow]:
    bar = TokenBar(progress)
    task = progress.add_task("serving", total=len(loads) * len(settings.served_apis))
    rows: list[ServingRow] = []
    warmed = 0
    for (workload, population), requests in loads.items():
        for api in settings.served_apis:
            async with _client(server, settings, api, key) as client:
                if (wanted := num_adapters(requests)) > warmed or not rows:
                    await _warm_up(client, requests, range(warmed, wanted), progress)
                    warmed = max(warmed, wanted)
                bar.start(f"{workload}, {population}, {api}", _num_tokens(requests))
                names = (workload, population, api)
                row = await _measure(client, server, settings, requests, long.get(population), names, bar)
            rows.append(row)
            progress.console.print(f"{workload}, {population}, {api}: {row.result.tokens_per_s:,.0f} tokens/s")
            progress.advance(task)
    return rows


def _measure_engine(
    config: ClusterConfig,
    model: ModelConfig,
    settings: ServingSettings,
    loads: _Loads,
    count: int,
    progress: Progress,
) -> list[ServingRow]:
    # Imported here: torch and the engine take seconds, which a benchmark of another server need not wait for.
    from punica_serve.bench.serving.bare_engine import BareEngine

    bar = TokenBar(progress)
    task = progress.add_task("bare engine", total=len(loads))
    rows: list[ServingRow] = []
    with closing(BareEngine(config, model, num_adapters=count, rank=settings.rank, progress=progress)) as engine:
        for (workload, population), requests in loads.items():
            bar.start(f"{workload}, {population}, engine", _num_tokens(requests))
            result = result_of(engine.closed_loop(requests, settings.num_clients, bar), settings.level)
            progress.console.print(f"{workload}, {population}, engine: {result.tokens_per_s:,.0f} tokens/s")
            rows.append(ServingRow(workload, population, "engine", result, None))
            progress.advance(task)
    return rows


def _num_tokens(requests: Sequence[ServedRequest]) -> int:
    """The tokens of all answers."""
    return sum(request.max_tokens for request in requests)


@asynccontextmanager
async def _client(server: Server, settings: ServingSettings, api: ApiName, key: str | None) -> AsyncIterator[Client]:
    """A client with a salt of its own: requests find no prefixes of earlier runs, which have the same prompts."""
    name, salt = settings.adapter_name, secrets.token_hex(8)
    client = (
        HttpClient(server.url, model=server.base_name, adapter_name=name, key=key, cache_salt=salt)
        if api == "http"
        else SocketClient(server.url, adapter_name=name, key=key, cache_salt=salt)
    )
    try:
        yield client
    finally:
        await client.aclose()


async def _warm_up(client: Client, requests: Sequence[ServedRequest], adapters: range, progress: Progress) -> None:
    """Asks for a token of the base model and of each adapter, so that none is read or made while the clock runs.

    Raises RequestFailed.
    """
    task = progress.add_task("first use of adapters", total=len(adapters) + 1)
    prompt = requests[0].prompt_ids[:_WARM_UP_CLIENTS]
    run = LoadRun(client, REQUEST_TIMEOUT_S, lambda num_tokens: progress.advance(task))
    await closed_loop(run, [ServedRequest(prompt, 1, adapter) for adapter in (None, *adapters)], _WARM_UP_CLIENTS)
    progress.remove_task(task)
    for times in run.times:
        if times.error is not None:
            raise RequestFailed(f"a request before the measurement failed: {times.error}")


async def _measure(
    client: Client,
    server: Server,
    settings: ServingSettings,
    requests: Sequence[ServedRequest],
    long: Iterator[ServedRequest] | None,
    names: tuple[WorkloadName, PopulationName, ApiName],
    bar: TokenBar,
) -> ServingRow:
    cpu_s = sum(frontend.cpu_s for frontend in server.frontends)
    run = LoadRun(client, REQUEST_TIMEOUT_S, bar.add)
    async with asyncio.TaskGroup() as group:
        beside = group.create_task(long_prompts(run, long)) if long is not None else None
        if settings.rate_per_s is None:
            await closed_loop(run, requests, settings.num_clients)
        else:
            burst = GROUP_SIZE if settings.groups_together and names[0] == "shared_prefixes" else 1
            await poisson(run, requests, settings.rate_per_s, burst)
        if beside is not None:
            beside.cancel()
    cpu_s = sum(frontend.cpu_s for frontend in server.frontends) - cpu_s
    num_tokens = sum(times.num_tokens for times in run.times)
    us_per_token = 1e6 * cpu_s / num_tokens if server.frontends and num_tokens else None
    beside_long = beside_long_prompts(run.times, run.long_times) if long is not None else None
    return ServingRow(*names, result_of(run.times, settings.level), us_per_token, beside_long)
