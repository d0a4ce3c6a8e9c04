"""Ray's own test cluster: nodes as separate raylets on this machine, and `punica-serve up --ray` on them."""

import asyncio
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.cluster_utils import Cluster

from process_tree import with_environment
from punica_faults.cluster import cluster_document
from punica_faults.references import Reference, make_references
from punica_serve.config.cluster import parse_config
from ray_up import RayUp
from waits import until

#: Marks all processes of a test, wherever Ray moves them in the tree.
MARK_ENV = "PUNICA_TEST_MARK"
STOP_TIMEOUT_S = 100.0
#: Two CPUs serve all streams and Ray beside them.
MAX_TOKENS = 64
#: Resources of the head, where `up` runs with the frontend, which these tests do not kill.
HEAD: dict[str, float] = {"head": 1}
#: Resources of the other nodes: one process of each kind.
NODE: dict[str, float] = {"scheduler": 1, "runner": 1}
#: A dead node is found in two seconds, where Ray's default takes fifteen.
FOUND_SOON = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 4,
}


@pytest.fixture
def ray_nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A head and two nodes. Afterwards no process is left that began in the test."""
    mark = secrets.token_hex(8)
    monkeypatch.setenv(MARK_ENV, mark)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # whatever tokens this machine has
    nodes = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "resources": HEAD, "_system_config": FOUND_SOON}
    )
    try:
        for _ in range(2):
            add_node(nodes)
        yield nodes
    finally:
        nodes.shutdown()
        asyncio.run(until(lambda: not with_environment(MARK_ENV, mark), "every process has ended"))


def add_node(nodes: Cluster) -> None:
    """Blocks for seconds, and must: Ray sets signal handlers, which only a main thread may."""
    nodes.add_node(num_cpus=0, resources=NODE)


@pytest.fixture
async def ray_up(ray_nodes: Cluster, tmp_path: Path) -> AsyncIterator[RayUp]:
    async with started(ray_nodes, tmp_path) as up:
        await up.until_ready(num_gpus=2)
        yield up


@asynccontextmanager
async def started(nodes: Cluster, folder: Path) -> AsyncIterator[RayUp]:
    (folder / "cluster.yaml").write_text(yaml.safe_dump(ray_document() | {"data_folder": str(folder / "data")}))
    command = [sys.executable, "-P", "-m", "punica_serve.cli", "up", "--ray"]
    with (folder / "log").open("wb") as log:
        up = await asyncio.create_subprocess_exec(
            *(*command, "--log-level", "info", "--config", str(folder / "cluster.yaml")),
            env={**os.environ, "RAY_ADDRESS": nodes.address},
            stdout=log,
            stderr=log,
        )
    try:
        yield RayUp(up, folder / "log")
    finally:
        up.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(up.wait(), STOP_TIMEOUT_S) == 0


def ray_document() -> dict[str, Any]:
    """One worker for each node."""
    document = cluster_document()
    document["runner"] |= {"devices": ["cpu"]}
    document["engine"] |= {"max_batch_size": 128, "num_kv_pages": 4096}
    document["frontend"] = {"port": 0, "insecure_no_auth": True}
    document["ray"] = {"scheduler": {"scheduler": 1}, "frontend": {"head": 1}, "runner": {"runner": 1}}
    return document


@pytest.fixture(scope="session")
def references() -> list[Reference]:
    made = make_references(parse_config(ray_document(), source="tests/e2e/ray", folder=Path.cwd()))
    return [reference for reference in made if reference.max_tokens <= MAX_TOKENS]
