"""The cluster of docker/compose.yaml, built and run by whichever Compose this machine has."""

import functools
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from websockets.asyncio.client import connect

from punica_serve.bench.free_ports import free_ports

ROOT = Path(__file__).parents[2]
COMPOSE_FILE = ROOT / "docker/compose.yaml"

#: Building downloads torch where no layer of an earlier build is left.
BUILD_TIMEOUT_S = 1800.0
#: Anything else that Compose does. Stopping waits for drains.
TIMEOUT_S = 240.0


@functools.cache
def has_engine() -> bool:
    """Whether a Docker engine answers, and there is a Compose for it."""
    if shutil.which("docker") is None or compose_program() is None:
        return False
    return subprocess.run(["docker", "info"], capture_output=True, check=False).returncode == 0


@functools.cache
def compose_program() -> list[str] | None:
    """`docker compose`, or the older docker-compose."""
    if shutil.which("docker"):
        plugin = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False)
        if plugin.returncode == 0:
            return ["docker", "compose"]
    return ["docker-compose"] if shutil.which("docker-compose") else None


class ComposeCluster:
    """A running project. Containers are named by their ids."""

    def __init__(self, overrides: Sequence[str] = ()) -> None:
        """``overrides`` are names of further compose files in docker/. Starts nothing yet."""
        port, tls_port = free_ports(2)
        self.url = f"http://127.0.0.1:{port}"
        self.tls_url = f"https://127.0.0.1:{tls_port}"
        self._files = [COMPOSE_FILE, *(COMPOSE_FILE.parent / name for name in overrides)]
        self._project = f"punica-smoke-{port}"
        # Builds use the host's network, for machines where containers do not reach the package index.
        self._environment = {
            "PUNICA_BUILD_NETWORK": "host",
            **os.environ,
            "PUNICA_PORT": str(port),
            "PUNICA_TLS_PORT": str(tls_port),
        }

    def compose(self, *arguments: str, timeout_s: float = TIMEOUT_S) -> str:
        program = compose_program()
        assert program is not None
        files = [word for file in self._files for word in ("--file", str(file))]
        command = [*program, "--project-name", self._project, *files, *arguments]
        done = subprocess.run(
            command, env=self._environment, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done.stdout

    def containers(self, service: str) -> list[str]:
        return self.compose("ps", "--quiet", service).split()

    def logs(self) -> str:
        return self.compose("logs", "--no-color", "--tail", "200")

    def signal_all(self, container: str, signal: str) -> None:
        """To every process of a container but its first, which is the engine's and starts no one again."""
        docker("exec", container, "sh", "-c", f"kill -{signal} -1")

    def cluster(self) -> dict[str, Any]:
        answer: dict[str, Any] = httpx.get(f"{self.url}/v1/cluster", trust_env=False, timeout=30.0).json()
        return answer

    def is_whole(self) -> bool:
        """Whether both runners and both frontends are there, and requests can run."""
        try:
            if not httpx.get(f"{self.url}/ready", trust_env=False, timeout=30.0).is_success:
                return False
            cluster = self.cluster()
        except (httpx.HTTPError, ValueError):
            return False
        return len(cluster["gpus"]) == 2 and cluster["num_frontends"] == 2

    def runner_at_work(self, runners: Sequence[str]) -> str:
        """Which of these containers most requests run on. A runner is called as its container is."""
        busiest = max(self.cluster()["gpus"], key=lambda gpu: int(gpu["working_set"]))
        (container,) = [name for name in runners if name.startswith(busiest["runner_id"])]
        return container

    async def stream(self, request: dict[str, Any], token_ids: list[int]) -> None:
        """One request on a websocket of its own: appends what comes, checked to be without gaps and repetitions."""
        async with connect(f"{self.url.replace('http', 'ws', 1)}/v1/generate/stream", proxy=None) as websocket:
            await websocket.send(json.dumps({"op": "generate", "request_id": "r", **request}))
            finish_reason = None
            while finish_reason is None:
                frame = json.loads(await websocket.recv())
                assert frame["error"] is None, frame
                assert frame["index"] == len(token_ids)
                token_ids += frame["token_ids"]
                finish_reason = frame["finish_reason"]


def docker(*arguments: str) -> str:
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, f"docker {' '.join(arguments)}\n{done.stderr}"
    return done.stdout.strip()


def size_bytes(image: str) -> int:
    return int(docker("image", "inspect", "--format", "{{.Size}}", image))


@contextmanager
def built(overrides: Sequence[str] = ()) -> Iterator[ComposeCluster]:
    """A project whose images are there, and of which nothing else is left in the end."""
    cluster = ComposeCluster(overrides)
    cluster.compose("build", timeout_s=BUILD_TIMEOUT_S)
    try:
        yield cluster
    finally:
        cluster.compose("down", "--volumes", "--timeout", "30")
