"""Runs a workload's closed loop on an engine in this process, to compare the whole stack with it.

A client whose answer ends has its next request in the engine before the next step: no stack can be faster.
"""

import secrets
import time
from collections.abc import Iterable, Sequence

import torch
from rich.progress import Progress

from punica_serve.base_model.model_config import ModelConfig
from punica_serve.bench.driver import MaxConcurrency, drive, preload
from punica_serve.bench.random_adapters import fill_host_cache
from punica_serve.bench.serving.served_times import ServedTimes
from punica_serve.bench.serving.serving_workloads import ServedRequest
from punica_serve.bench.token_bar import TokenBar
from punica_serve.config.cluster import ClusterConfig
from punica_serve.engine.engine import Engine
from punica_serve.engine.step_output import StepOutput
from punica_serve.process.memory_tuning import frozen_gc
from punica_serve.protocol import AdapterRef, Request, SamplingParams


class BareEngine:
    """The engine of a config's first worker, with random adapters that were all used before."""

    def __init__(
        self, config: ClusterConfig, model: ModelConfig, *, num_adapters: int, rank: int, progress: Progress
    ) -> None:
        """Raises ConfigError and ModelRejected."""
        self._engine = Engine(config.engine, config.runner.workers[0])
        task = progress.add_task("making adapters", total=num_adapters)
        dtype: torch.dtype = getattr(torch, config.engine.dtype_of(model))
        self._adapters = fill_host_cache(self._engine, num_adapters, rank, dtype, lambda: progress.advance(task))
        preload(self._engine, self._adapters)
        progress.remove_task(task)

    def closed_loop(self, requests: Sequence[ServedRequest], num_clients: int, bar: TokenBar) -> list[ServedTimes]:
        """The times of all requests. Raises RequestFailed."""
        with frozen_gc():
            loop = ClosedLoopClients(engine_requests(requests, self._adapters), num_clients)

            def on_step(output: StepOutput) -> None:
                loop.on_step(output)
                bar.on_step(output)

            drive(self._engine, loop, on_step)
        return loop.times

    def close(self) -> None:
        self._engine.close()


class ClosedLoopClients:
    """A policy of clients, and the times of their requests."""

    def __init__(self, requests: Iterable[Request], num_clients: int) -> None:
        self._in_flight = MaxConcurrency(requests, num_clients)
        self._started_s = time.perf_counter()
        self._by_id: dict[str, ServedTimes] = {}

    @property
    def times(self) -> list[ServedTimes]:
        """By arrival."""
        return list(self._by_id.values())

    def due(self, num_unfinished: int) -> list[Request]:
        """See ``Policy``."""
        requests = self._in_flight.due(num_unfinished)
        self._by_id |= {request.request_id: ServedTimes(self._now_s()) for request in requests}
        return requests

    def on_step(self, output: StepOutput) -> None:
        """Notes when tokens came, and ends."""
        now_s = self._now_s()
        for token in output.tokens:
            self._by_id[token.request_id].arrivals.append((now_s, token.position + 1))
        for request_id, _ in output.finished:
            self._by_id[request_id].ended_s = now_s

    def _now_s(self) -> float:
        return time.perf_counter() - self._started_s


def engine_requests(requests: Sequence[ServedRequest], adapters: Sequence[AdapterRef]) -> list[Request]:
    """The same requests for an engine, greedy and of exact lengths, under a salt and names of their own."""
    run = secrets.token_hex(8)
    return [
        Request(
            f"{run}-{number}",
            number,
            request.prompt_ids,
            SamplingParams(max_tokens=request.max_tokens, ignore_eos=True),
            None if request.adapter is None else adapters[request.adapter],
            cache_salt=run,
        )
        for number, request in enumerate(requests)
    ]
