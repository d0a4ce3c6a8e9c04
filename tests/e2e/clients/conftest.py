"""A cluster that wants keys, and the clients that others wrote, in an environment of their own."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

REPOSITORY = Path(__file__).parents[3]
SCRIPTS = Path(__file__).parent / "scripts"
#: Made by `make clients`, with the versions in constraints-clients.txt.
CLIENTS_PYTHON = REPOSITORY / ".venv-clients" / "bin" / "python"
#: Of a script, far more than any takes.
SCRIPT_TIMEOUT_S = 180


@dataclass(frozen=True)
class KeyedCluster:
    """A frontend's address, and a user's key for it."""

    url: str
    key: str

    def run(self, script: str, python: Path, *arguments: str) -> dict[str, Any]:
        """Runs a script of SCRIPTS against it, which must exit with 0; returns what it prints, a JSON object."""
        environment = os.environ | {"NO_PROXY": "*", "no_proxy": "*"}
        command = [str(python), str(SCRIPTS / script), self.url, self.key, *arguments]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=SCRIPT_TIMEOUT_S, env=environment)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        told: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
        return told


@pytest.fixture(scope="session")
def keyed_cluster(start: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeyedCluster]:
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
