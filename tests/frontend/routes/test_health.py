from typing import Any

import httpx
import pytest

from punica_serve.protocol import Limits


async def test_ready(client: httpx.AsyncClient) -> None:
    assert (await client.get("/health")).json() == {"status": "ok"}
    assert (await client.get("/ready")).json() == {"status": "ready", "num_gpus": 1}


@pytest.mark.parametrize(
    ("connected", "limits", "reason"),
    [(False, None, "scheduler"), (True, None, "GPU"), (True, Limits(0, None), "GPU")],
)
async def test_not_ready_but_alive(
    client: httpx.AsyncClient, cluster: Any, connected: bool, limits: Limits | None, reason: str
) -> None:
    cluster.connected, cluster.limits = connected, limits
    response = await client.get("/ready")
    assert response.status_code == 503
    assert reason in response.json()["error"]["message"]
    assert (await client.get("/health")).status_code == 200
