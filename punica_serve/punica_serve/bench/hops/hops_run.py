"""Runs `bench hops`: a closed loop of traced requests on a cluster of its own."""

import asyncio
import secrets
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.progress import Progress

from punica_serve.base_model.model_config import ModelConfig
from punica_serve.bench.hops.hop_times import ClientTimes, by_trace, hop_times_s, is_whole
from punica_serve.bench.hops.hops_report import hops_report
from punica_serve.bench.hops.otlp_collector import OtlpCollector, otlp_collector
from punica_serve.bench.report import Report
from punica_serve.bench.serving.http_stream import HttpClient
from punica_serve.bench.serving.serving_cluster import serving_cluster, with_dummies
from punica_serve.bench.serving.serving_workloads import ServedRequest, random_requests
from punica_serve.config.cluster import ClusterConfig
from punica_serve.errors import ClusterUnavailable
from punica_serve.process.tracing import SpanContext, new_root

#: Requests of each client before those that count.
_WARM_UP = 4
#: Processes export their spans once a second.
_SPANS_TIMEOUT_S = 20.0
_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class HopSettings:
    """One run."""

    num_clients: int = 1
    #: Each client's.
    num_requests: int = 50
    prompt_tokens: int = 160
    answer_tokens: int = 16
    rank: int = 16

    @property
    def load(self) -> str:
        """The load in words."""
        tokens = f"{self.prompt_tokens} tokens in, {self.answer_tokens} out"
        return f"closed loop of {self.num_clients} clients, {tokens}"


def run_hops(config: ClusterConfig, model: ModelConfig, settings: HopSettings, progress: Progress) -> Report:
    """Raises ConfigError, ClusterUnavailable and RequestFailed."""
    config = with_dummies(config, model, num_adapters=1, rank=settings.rank, batch_size=None)
    with otlp_collector() as collector, tempfile.TemporaryDirectory() as folder:
        tracing = config.tracing.model_copy(update={"otlp_endpoint": collector.url})
        config = config.model_copy(update={"tracing": tracing})
        with serving_cluster(config, model, Path(folder)) as cluster:
            times = asyncio.run(_measure(cluster.url, config, model, settings, progress))
            _await_spans(collector, [request for client in times for request in client])
    times_s = hop_times_s(times, by_trace(collector.spans))
    return hops_report(times_s, {**asdict(settings), "model": config.engine.served_name}, settings.load)


async def _measure(
    url: str, config: ClusterConfig, model: ModelConfig, settings: HopSettings, progress: Progress
) -> list[list[ClientTimes]]:
    """The times of each client's requests."""
    count = settings.num_requests + _WARM_UP
    task = progress.add_task("requests", total=count * settings.num_clients)
    requests = random_requests(
        count * settings.num_clients,
        settings.prompt_tokens,
        settings.answer_tokens,
        vocab_size=model.vocab_size,
        max_context=config.engine.context_of(model),
    )
    name, salt = config.engine.served_name, secrets.token_hex(8)
    client = HttpClient(url, model=name, adapter_name="dummy-{}", key=None, cache_salt=salt)

    async def run_client(number: int) -> list[ClientTimes]:
        times = []
        for request in requests[number :: settings.num_clients]:
            times.append(await _send(client, request))
            progress.advance(task)
        return times[_WARM_UP:]

    try:
        return await asyncio.gather(*map(run_client, range(settings.num_clients)))
    finally:
        await client.aclose()


async def _send(client: HttpClient, request: ServedRequest) -> ClientTimes:
    root: SpanContext = new_root()
    sent_ns = time.time_ns()
    first_token_ns = 0
    async for _ in client.stream(request, traceparent=root.traceparent):
        first_token_ns = first_token_ns or time.time_ns()
    return ClientTimes(root.trace_id, sent_ns, first_token_ns, time.time_ns())


def _await_spans(collector: OtlpCollector, requests: Sequence[ClientTimes]) -> None:
    """Waits until the spans of all requests have come. Raises ClusterUnavailable if some do not."""
    deadline_s = time.monotonic() + _SPANS_TIMEOUT_S
    while True:
        traces = by_trace(tuple(collector.spans))
        missing = sum(not is_whole(traces.get(request.trace_id, {})) for request in requests)
        if not missing:
            return
        if time.monotonic() > deadline_s:
            raise ClusterUnavailable(f"the spans of {missing} requests did not come within {_SPANS_TIMEOUT_S:g} s")
        time.sleep(_POLL_S)
