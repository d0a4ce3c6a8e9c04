"""The cluster under test, started process by process as on a platform, with each link through a proxy of ours.

frontend-0, frontend-1  ──proxies──▶  scheduler  ◀──proxies──  runner-0, runner-1 (two workers each)
"""

import asyncio
import contextlib
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml
from prometheus_client.parser import text_string_to_metric_families

from punica_faults.procs import KeptProcess
from punica_faults.proxy import Link
from punica_serve.bench.free_ports import free_ports
from punica_serve.process.lifeline import lifeline
from punica_serve.process.run import TOKEN_ENV
from waits import until

RUNNERS = ("runner-0", "runner-1")
FRONTENDS = ("frontend-0", "frontend-1")
WORKERS_PER_RUNNER = 2
NUM_GPUS = len(RUNNERS) * WORKERS_PER_RUNNER
CALL_TIMEOUT_S = 6.0
#: More than the longest stream takes on a slow machine: none is to be cut.
DRAIN_TIMEOUT_S = 300.0

_HARNESS = Path(__file__).parents[1]


def cluster_document(scheduler_port: int = 0) -> dict[str, Any]:
    """Timeouts are short for quick recoveries, and yet wide for two cores that are shared by all: a false alarm moves
    streams, and fails nothing."""
    adapters = ("roman", "english", "french", "binary", "hex")
    return {
        "engine": {
            "model": "demo:model",
            "dtype": "float32",
            "max_batch_size": 64,
            "num_kv_pages": 320,  # scarce once a worker is gone, so that requests are evicted too
            "num_lora_pages": 64,
            "cpu_threads": 1,
        },
        "adapters": {name: f"demo:adapters/{name}" for name in adapters},
        "scheduler": {"port": scheduler_port, "audit": True, "audit_every": 4, "consolidation": {"interval_s": 1.0}},
        "frontend": {"drain_timeout_s": DRAIN_TIMEOUT_S},
        "links": {"heartbeat_s": 1.0, "silence_s": 4.0},
        "runner": {
            "devices": ["cpu"] * WORKERS_PER_RUNNER,
            "silence_timeout_s": 3.0,
            "drain_timeout_s": DRAIN_TIMEOUT_S,
        },
    }


@dataclass
class Cluster:
    """The processes and links, by name, and what the frontends say of the whole."""

    folder: Path
    processes: dict[str, KeptProcess]
    links: dict[str, Link]
    ports: dict[str, int]
    http: httpx.AsyncClient

    @property
    def stream_urls(self) -> dict[str, str]:
        return {name: f"ws://127.0.0.1:{self.ports[name]}/v1/generate/stream" for name in FRONTENDS}

    def workers(self, runner: str) -> dict[int, int]:
        """Index among the runner's devices -> process id."""
        lines = self.processes[runner].children("punica_faults.poison")
        return {int(line.split("--index ")[1].split()[0]): pid for pid, line in lines.items()}

    async def snapshot(self, frontend: str = FRONTENDS[0]) -> dict[str, Any] | None:
        """/v1/cluster; None while that frontend can't tell."""
        with contextlib.suppress(httpx.HTTPError):
            answer = await self.http.get(f"http://127.0.0.1:{self.ports[frontend]}/v1/cluster")
            if answer.is_success:
                cluster: dict[str, Any] = answer.json()
                return cluster
        return None

    async def figures(self, frontend: str) -> dict[str, float] | None:
        """/metrics of those with no label but the model's name; None while that frontend can't tell."""
        with contextlib.suppress(httpx.HTTPError):
            answer = await self.http.get(f"http://127.0.0.1:{self.ports[frontend]}/metrics")
            samples = (sample for family in text_string_to_metric_families(answer.text) for sample in family.samples)
            return {sample.name: sample.value for sample in samples if sample.labels.keys() <= {"model_name"}}
        return None

    async def is_whole(self) -> bool:
        """Both frontends see all GPUs."""
        for frontend in FRONTENDS:
            cluster = await self.snapshot(frontend)
            if cluster is None or len(cluster["gpus"]) != NUM_GPUS or cluster["num_frontends"] != len(FRONTENDS):
                return False
        return True

    async def until_whole(self) -> float:
        return await until(self.is_whole, "all processes are back", describe=self.log_tails)

    def log_tails(self) -> str:
        """The end of each process's log."""
        tails = (f"--- {name}\n" + process.log_text()[-1500:] for name, process in self.processes.items())
        return "\n".join(tails)


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Cluster]:
    """A cluster whose processes are all kept running, whatever kills them, until the context ends."""
    ports = dict(zip(("scheduler", *FRONTENDS), free_ports(1 + len(FRONTENDS)), strict=True))
    document = cluster_document(ports["scheduler"]) | {"data_folder": str(folder / "data")}
    (folder / "cluster.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    async with AsyncExitStack() as stack:
        links = {
            name: await stack.enter_async_context(Link(name, ports["scheduler"]).listening())
            for name in (*RUNNERS, *FRONTENDS)
        }
        lifeline_fd = stack.enter_context(lifeline())
        environment = {TOKEN_ENV: secrets.token_hex(16), "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = ":".join((*filter(None, sys.path), str(_HARNESS)))
        processes = {
            name: KeptProcess(
                name=name,
                command=_command(name, folder / "cluster.yaml", links, ports),
                environment=environment,
                log=folder / f"{name}.log",
                lifeline_fd=lifeline_fd,
            )
            for name in ("scheduler", *RUNNERS, *FRONTENDS)
        }
        http = await stack.enter_async_context(httpx.AsyncClient(timeout=CALL_TIMEOUT_S, trust_env=False))
        cluster = Cluster(folder, processes, links, ports, http)
        await stack.enter_async_context(_kept_running(list(processes.values())))
        await cluster.until_whole()
        yield cluster


@asynccontextmanager
async def _kept_running(processes: list[KeptProcess]) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(process.keep_running(), name=process.name) for process in processes]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


def _command(name: str, config: Path, links: dict[str, Link], ports: dict[str, int]) -> list[str]:
    python = [sys.executable, "-P", "-m"]
    common = ["--config", str(config)]
    if name == "scheduler":
        return [*python, "punica_serve.cli", "scheduler", *common]
    dialling = ["--scheduler-url", f"ws://127.0.0.1:{links[name].port}"]
    if name in RUNNERS:
        return [*python, "punica_faults.runner", *common, *dialling, "--runner-id", name]
    return [*python, "punica_serve.cli", "frontend", *common, *dialling, "--port", str(ports[name])]
