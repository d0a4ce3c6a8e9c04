"""The whole cluster as its users have it: `punica-serve up` on the demo, with a broken adapter beside the good ones."""

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from websockets.asyncio.client import connect

from ports import free_ports
from process_tree import alive, command_line, descendants
from punica_serve.links.https_client import client_context
from waits import DEADLINE_S

CONFIGS = Path(__file__).parents[2] / "configs"

#: Far more than anything here takes on a slow machine; less than a test's own limit, so that the reason is told.
TIMEOUT_S = DEADLINE_S
POLL_S = 0.05


@dataclass
class Stream:
    """One answer over the websocket, as far as it has come."""

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: str | None = None


class Cluster:
    """A running `punica-serve up`."""

    def __init__(self, up: subprocess.Popen[bytes], log: Path, num_workers: int) -> None:
        self.up = up
        self.num_workers = num_workers
        self.log = log

    @property
    def urls(self) -> list[str]:
        """Of the frontends, as the banner lists them."""
        return re.findall(r"(?:is ready:|also at) +(https?://\S+)", self.log.read_text())

    @property
    def url(self) -> str:
        return self.urls[0]

    @property
    def stream_url(self) -> str:
        return f"{self.url.replace('http', 'ws', 1)}/v1/generate/stream"

    def wait_until_ready(self, timeout_s: float) -> None:
        def is_ready() -> bool:
            assert self.up.poll() is None, self.log.read_text()
            return "Ctrl-C stops it" in self.log.read_text() and self.num_gpus() == self.num_workers

        wait_until(is_ready, lambda: self.log.read_text(), timeout_s)

    def get(self, path: str) -> httpx.Response:
        """An answer of the first frontend's."""
        return httpx.get(f"{self.url}{path}", timeout=TIMEOUT_S, verify=client_context(), trust_env=False)

    def snapshot(self) -> dict[str, Any]:
        """/v1/cluster, which must answer."""
        snapshot: dict[str, Any] = self.get("/v1/cluster").raise_for_status().json()
        return snapshot

    def num_gpus(self) -> int:
        """0 while nobody can tell."""
        with contextlib.suppress(httpx.HTTPError):
            return len(self.snapshot()["gpus"])
        return 0

    def processes(self, role: str = "") -> list[int]:
        """Process ids below `up`, of those whose command line has ``role`` in it."""
        return [pid for pid in descendants(self.up.pid) if role in command_line(pid)]

    def new_streams(self, count: int) -> list[Stream]:
        return [Stream() for _ in range(count)]

    def kill(self, role: str) -> None:
        """Kills one process, the hard way."""
        os.kill(self.processes(role)[0], signal.SIGKILL)

    async def stream(self, request: dict[str, Any], into: Stream) -> None:
        """One request on a websocket of its own, checked to be without gaps and repetitions."""
        async with connect(self.stream_url, proxy=None) as websocket:
            await websocket.send(json.dumps({"op": "generate", "request_id": "r", **request}))
            while into.finish_reason is None:
                frame = json.loads(await websocket.recv())
                assert frame["error"] is None, frame
                assert frame["index"] == len(into.token_ids)
                into.token_ids += frame["token_ids"]
                into.text += frame["text"]
                into.finish_reason = frame["finish_reason"]

    def counters(self) -> dict[str, int]:
        counters: dict[str, int] = self.snapshot()["counters"]
        return counters

    def num_evictions(self) -> int:
        return self.counters()["evictions"]

    def num_used_pages(self) -> int:
        gpus = self.snapshot()["gpus"]
        return sum(gpu["gpu"]["num_kv_pages"] - gpu["free_kv_pages"] for gpu in gpus)


def wait_until(
    holds: Callable[[], bool], describe: Callable[[], object] = lambda: "", timeout_s: float = TIMEOUT_S
) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline_s, describe()
        time.sleep(POLL_S)


@contextmanager
def started(
    folder: Path,
    config_name: str = "demo.yaml",
    ready_timeout_s: float = TIMEOUT_S,
    num_runners: int = 1,
    num_frontends: int = 1,
    log_level: str = "info",
    **engine: Any,
) -> Iterator[Cluster]:
    """A cluster of one of our config files, with these engine settings, on ports that nobody takes before it does.

    On the way out it is stopped, and leaves nothing behind.
    """
    config = yaml.safe_load((CONFIGS / config_name).read_text())
    config["engine"] |= engine
    config.setdefault("adapters", {})["broken"] = str(folder / "broken")
    scheduler_port, frontend_port, *_ = free_ports(1 + num_frontends)
    for role, port in (("scheduler", scheduler_port), ("frontend", frontend_port)):
        config[role] = {**config.get(role, {}), "port": port}
    config["data_folder"] = str(folder / "data")
    (folder / "cluster.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    command = [sys.executable, "-P", "-m", "punica_serve.cli", "up", "--log-level", log_level]
    command += ["--runners", str(num_runners), "--frontends", str(num_frontends)]
    with (folder / "log").open("wb") as log:
        up = subprocess.Popen([*command, "--config", str(folder / "cluster.yaml")], stdout=log, stderr=log)
    cluster = Cluster(up, folder / "log", num_runners * len(config["runner"]["devices"]))
    try:
        cluster.wait_until_ready(ready_timeout_s)
        yield cluster
    finally:
        left = cluster.processes()
        up.send_signal(signal.SIGINT)
        up.wait(TIMEOUT_S)
        wait_until(lambda: not alive(left))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Shared by all tests, those that kill some of it too: it must get over that."""
    with started(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def simulated_cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Three simulated GPUs at four times an A100's speed. Its config asks for fifteen of their seconds of even load."""
    document = yaml.safe_load((CONFIGS / "sim" / "live-16.yaml").read_text())
    document["runner"]["devices"] = ["simulated"] * 3
    document["simulation"] |= {"speed": 4.0, "arrivals": {"rate": [[0, 3], [15, 3]]}}
    (tmp_path / "three.yaml").write_text(yaml.safe_dump(document))
    with started(tmp_path, str(tmp_path / "three.yaml")) as cluster:
        yield cluster


@pytest.fixture
def run_demo(tmp_path: Path) -> Callable[..., AbstractContextManager[Cluster]]:
    """Runs the demo with these parts of its config file changed."""

    def run(log_level: str = "info", **dependencies: dict[str, Any] | str) -> AbstractContextManager[Cluster]:
        document = yaml.safe_load((CONFIGS / "demo.yaml").read_text())
        for name, part in dependencies.items():
            document[name] = {**document.get(name, {}), **part} if isinstance(part, dict) else part
        (tmp_path / "changed.yaml").write_text(yaml.safe_dump(document))
        return started(tmp_path, str(tmp_path / "changed.yaml"), log_level=log_level)

    return run


@pytest.fixture
def two_runners(tmp_path: Path) -> Iterator[Cluster]:
    with started(tmp_path, num_runners=2) as cluster:
        yield cluster


@pytest.fixture
def small_cluster(tmp_path: Path) -> Iterator[Cluster]:
    """With 960 tokens of KvCache on each GPU."""
    with started(tmp_path, num_kv_pages=60) as cluster:
        yield cluster


@pytest.fixture
def gpu_cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """On a GPU, with the engine settings that the test gives. Triton compiles its kernels the first time."""
    with started(tmp_path, "gpu.yaml", ready_timeout_s=280.0, **request.param) as cluster:
        yield cluster


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[Cluster]:
    """For tests that end it."""
    with started(tmp_path) as cluster:
        yield cluster


@pytest.fixture
def wide_cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Of two runners and two frontends."""
    with started(tmp_path, num_runners=2, num_frontends=2) as cluster:
        yield cluster


@pytest.fixture
async def http(cluster: Cluster) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=cluster.url, timeout=TIMEOUT_S, trust_env=False) as client:
        yield client


@pytest.fixture(scope="session")
def start() -> Callable[..., AbstractContextManager[Cluster]]:
    """``started``: for tests that start a cluster more than once."""
    return started


@pytest.fixture(name="wait_until")
def wait_until_fixture() -> Callable[..., None]:
    return wait_until


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], Any]:
    """await until(lambda: ...): waits for something to become true, off the event loop."""
    return lambda holds: asyncio.to_thread(wait_until, holds)
