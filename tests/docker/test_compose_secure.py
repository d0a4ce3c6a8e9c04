"""docker/compose.secure.yaml as docs/docker.md has it: secrets, a key, and answers to who has it, in TLS all the way.

Part of `make compose-smoke`.
"""

import ssl
import subprocess
from collections.abc import Iterator

import httpx
import pytest

from compose_cluster import COMPOSE_FILE, ComposeCluster, built, has_engine
from waits import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.alone,
    pytest.mark.timeout(2400),
    pytest.mark.skipif(not has_engine(), reason="no Docker engine answers, or there is no Compose"),
]

FOLDER = COMPOSE_FILE.parent
BODY = {"prompt": "42", "lora_id": "roman"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[ComposeCluster]:
    """Before its first start. Secrets that its user has already stay as they are."""
    subprocess.run([FOLDER / "make-secrets"], check=True, capture_output=True)
    with built(["compose.secure.yaml"]) as cluster:
        yield cluster


async def test_who_has_the_key_is_answered_in_tls_and_nobody_else(cluster: ComposeCluster) -> None:
    config = ["--config", "/etc/punica-serve/cluster.yaml"]
    key = cluster.compose(
        "run", "--rm", "-T", "--no-deps", "frontend", "keys", "create", "--role", "admin", *config
    ).strip()
    cluster.compose("up", "--detach", "--no-build")
    trusted = ssl.create_default_context(cafile=str(FOLDER / "secrets/ca.pem"))
    async with httpx.AsyncClient(base_url=cluster.tls_url, verify=trusted, timeout=60.0, trust_env=False) as client:

        async def is_ready() -> bool:
            try:
                return (await client.get("/ready")).is_success
            except httpx.HTTPError:
                return False

        await until(is_ready)
        assert (await client.post("/v1/generate", json=BODY)).status_code == 401
        answer = await client.post("/v1/generate", json=BODY, headers={"Authorization": f"Bearer {key}"})
        assert answer.json()["text"] == "XLII"
        cookie = (await client.post("/v1/login", json={"key": key})).headers["set-cookie"]
        assert "Secure" in cookie, "the frontend knows that the client came by HTTPS"
        assert (await client.get("/metrics")).status_code == 404
        with pytest.raises(httpx.TransportError):
            await client.get(f"{cluster.url}/ready")
    assert "wss://scheduler:8100" in cluster.logs()
