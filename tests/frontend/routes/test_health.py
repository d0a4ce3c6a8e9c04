import httpx
import pytest

from echo_cluster import EchoCluster
from punica_serve.protocol import Limits
from punica_serve.version import __version__


async def test_ready(client: httpx.AsyncClient) -> None:
    assert (await client.get("/health")).json() == {"status": "ok"}
    assert (await client.get("/ready")).json() == {"status": "ready", "num_gpus": 1}


async def test_gpus_that_are_drained_take_nothing(client: httpx.AsyncClient, cluster: EchoCluster) -> None:
    cluster.limits = Limits(2, 9, num_draining=1)
    assert (await client.get("/ready")).json() == {"status": "ready", "num_gpus": 1}


@pytest.mark.parametrize(
    ("connected", "limits", "reason"),
    [
        (False, None, "scheduler"),
        (True, None, "no GPU has joined"),
        (True, Limits(0, None), "no GPU has joined"),
        (True, Limits(2, 9, num_draining=2), "all GPUs are draining"),
    ],
)
async def test_not_ready_but_alive(
    client: httpx.AsyncClient, cluster: EchoCluster, connected: bool, limits: Limits | None, reason: str
) -> None:
    cluster.connected, cluster.limits = connected, limits
    response = await client.get("/ready")
    assert response.status_code == 503
    assert reason in response.json()["error"]["message"]
    assert (await client.get("/health")).status_code == 200


@pytest.mark.parametrize("method", ["GET", "POST", "HEAD"])
async def test_a_ping_is_answered_without_a_word(client: httpx.AsyncClient, method: str) -> None:
    answer = await client.request(method, "/ping")
    assert (answer.status_code, answer.content) == (200, b"")


async def test_the_version(client: httpx.AsyncClient) -> None:
    assert (await client.get("/version")).json() == {"version": __version__}
