"""A running `punica-serve up`, and ways to start one."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml
from websockets.asyncio.client import connect

from process_tree import alive, command_line, descendants
from punica_serve.bench.free_ports import free_ports
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


class UpCluster:
    """A running `punica-serve up`."""

    def __init__(self, up: subprocess.Popen[bytes], log: Path, num_workers: int) -> None:
        self.up = up
        self.num_workers = num_workers
        self.log = log

    @property
    def urls(self) -> list[str]:
        """The frontends' URLs, as the banner lists them."""
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

    def num_gpus_lost(self) -> int:
        """Since the scheduler started: unlike a GPU's absence, it can be seen however late one looks.

        A killed worker's counts always, a stopped runner's only if it had work.
        """
        return self.counters()["gpus_lost"]

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
    runner: dict[str, Any] | None = None,
    **engine: Any,
) -> Iterator[UpCluster]:
    """A cluster of one of our config files, with these settings, on ports that nobody takes before it does.

    On the way out it is stopped, and leaves nothing behind.
    """
    config = yaml.safe_load((CONFIGS / config_name).read_text())
    config["engine"] |= engine
    config["runner"] |= runner or {}
    config.setdefault("adapters", {})["broken"] = str(folder / "broken")
    scheduler_port, frontend_port, *_ = free_ports(1 + num_frontends)
    for role, port in (("scheduler", scheduler_port), ("frontend", frontend_port)):
        config[role] = {**config.get(role, {}), "port": port}
    # A busy disk may take longer for a commit than a user would wait.
    config["registry"] = {"timeout_s": 60.0, **config.get("registry", {})}
    config["data_folder"] = str(folder / "data")
    (folder / "cluster.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    command = [sys.executable, "-P", "-m", "punica_serve.cli", "up", "--log-level", log_level]
    command += ["--runners", str(num_runners), "--frontends", str(num_frontends)]
    with (folder / "log").open("wb") as log:
        up = subprocess.Popen([*command, "--config", str(folder / "cluster.yaml")], stdout=log, stderr=log)
    num_workers = len(config["runner"]["devices"]) // config["runner"].get("tensor_parallel", 1)
    cluster = UpCluster(up, folder / "log", num_runners * num_workers)
    try:
        cluster.wait_until_ready(ready_timeout_s)
        yield cluster
    finally:
        left = cluster.processes()
        up.send_signal(signal.SIGINT)
        up.wait(TIMEOUT_S)
        wait_until(lambda: not alive(left))


#: ``started``, and fixtures that call it.
Start = Callable[..., AbstractContextManager[UpCluster]]
#: ``wait_until``, off the event loop.
Until = Callable[[Callable[[], bool]], Awaitable[None]]
WaitUntil = Callable[..., None]
