"""The whole cluster as its users have it: `punica-serve up` on the demo, with a broken adapter beside the good ones."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from up_cluster import CONFIGS, TIMEOUT_S, Start, Until, UpCluster, WaitUntil, started, wait_until


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpCluster]:
    """Shared by all tests, those that kill some of it too: it must get over that."""
    with started(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def simulated_cluster(tmp_path: Path) -> Iterator[UpCluster]:
    """Three simulated GPUs at four times an A100's speed. Its config asks for fifteen of their seconds of even load."""
    document = yaml.safe_load((CONFIGS / "sim" / "live-16.yaml").read_text())
    document["runner"]["devices"] = ["simulated"] * 3
    document["simulation"] |= {"speed": 4.0, "arrivals": {"rate": [[0, 3], [15, 3]]}}
    (tmp_path / "three.yaml").write_text(yaml.safe_dump(document))
    with started(tmp_path, str(tmp_path / "three.yaml")) as cluster:
        yield cluster


@pytest.fixture
def run_demo(tmp_path: Path) -> Start:
    """Runs the demo with these parts of its config file changed."""

    def run(log_level: str = "info", **dependencies: dict[str, Any] | str) -> AbstractContextManager[UpCluster]:
        document = yaml.safe_load((CONFIGS / "demo.yaml").read_text())
        for name, part in dependencies.items():
            document[name] = {**document.get(name, {}), **part} if isinstance(part, dict) else part
        (tmp_path / "changed.yaml").write_text(yaml.safe_dump(document))
        return started(tmp_path, str(tmp_path / "changed.yaml"), log_level=log_level)

    return run


@pytest.fixture
def two_runners(tmp_path: Path) -> Iterator[UpCluster]:
    with started(tmp_path, num_runners=2) as cluster:
        yield cluster


@pytest.fixture
def small_cluster(tmp_path: Path) -> Iterator[UpCluster]:
    """With 960 tokens of KvCache on each GPU."""
    with started(tmp_path, num_kv_pages=60) as cluster:
        yield cluster


@pytest.fixture
def gpu_cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[UpCluster]:
    """On a GPU, with the engine settings that the test gives. Triton compiles its kernels the first time."""
    with started(tmp_path, "gpu.yaml", ready_timeout_s=280.0, **request.param) as cluster:
        yield cluster


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[UpCluster]:
    """For tests that end it."""
    with started(tmp_path) as cluster:
        yield cluster


@pytest.fixture
def wide_cluster(tmp_path: Path) -> Iterator[UpCluster]:
    """A cluster of two runners and two frontends."""
    with started(tmp_path, num_runners=2, num_frontends=2) as cluster:
        yield cluster


@pytest.fixture
async def http(cluster: UpCluster) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=cluster.url, timeout=TIMEOUT_S, trust_env=False) as client:
        yield client


@pytest.fixture(scope="session")
def start() -> Start:
    """``started``: for tests that start a cluster more than once."""
    return started


@pytest.fixture(name="wait_until")
def wait_until_fixture() -> WaitUntil:
    return wait_until


@pytest.fixture
def until() -> Until:
    """await until(lambda: ...): waits for something to become true, off the event loop."""
    return lambda holds: asyncio.to_thread(wait_until, holds)
