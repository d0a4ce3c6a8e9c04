"""A cluster that wants keys, and the clients that others wrote, in an environment of their own."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from keyed_cluster import KeyedCluster
from up_cluster import Start

#: Made by `make clients`, with the versions in constraints-clients.txt.
CLIENTS_PYTHON = Path(__file__).parents[3] / ".venv-clients" / "bin" / "python"


@pytest.fixture(scope="session")
def keyed_cluster(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeyedCluster]:
    with start(tmp_path_factory.mktemp("keyed")) as cluster:
        yield KeyedCluster(cluster.url, _make_key(cluster.url))


@pytest.fixture
def clients_python() -> Path:
    if not (CLIENTS_PYTHON.parents[1] / ".installed").exists():
        pytest.skip("there is no .venv-clients, or it is not complete; `make clients` makes it")
    return CLIENTS_PYTHON


def _make_key(url: str) -> str:
    """A user's. The admin's, before it, locks the cluster."""
    with httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
        admin = _made(client.post("/v1/keys", json={"tenant": "default", "role": "admin"}))
        bearer = {"Authorization": f"Bearer {admin}"}
        return _made(client.post("/v1/keys", json={"tenant": "default", "role": "user"}, headers=bearer))


def _made(answer: httpx.Response) -> str:
    return str(answer.raise_for_status().json()["key"])
