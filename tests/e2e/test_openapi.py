"""The OpenAPI page against the whole cluster, by callers who show a key: administrators and others."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from schemathesis_run import schemathesis
from up_cluster import Start, UpCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

#: None of those that the page's examples name, and so change and delete.
TENANT = "visitors"
#: Few examples of each phase.
OPTIONS = ("--max-examples", "2")
#: By these an administrator can take away its own key.
LOCKING = ("/v1/keys/{key_id}", "/v1/tenants/{tenant}")
#: Options by key: the administrators' routes in all phases, with optional fields left out, at the edges and beyond
#: them; the others in fewer phases, since tests/frontend/test_schemathesis.py does the rest.
ROUTES = {
    "admin": ("--include-tag", "tenants", *(f"--exclude-path={path}" for path in LOCKING)),
    "user": ("--exclude-tag", "tenants", "--phases", "examples,fuzzing"),
}


@pytest.fixture
def short_cluster(start: Start, tmp_path: Path) -> Iterator[UpCluster]:
    """Its longest answers are short: many of the requests ask for the longest."""
    with start(tmp_path, max_context=64) as cluster:
        yield cluster


@pytest.fixture
def keys(short_cluster: UpCluster) -> dict[str, str]:
    """By role."""
    keys: dict[str, str] = {}
    with httpx.Client(base_url=short_cluster.url, timeout=60.0, trust_env=False) as http:
        http.put(f"/v1/tenants/{TENANT}", json={}).raise_for_status()
        for role in ROUTES:
            answer = http.post("/v1/keys", json={"tenant": TENANT, "role": role}).raise_for_status()
            keys[role] = answer.json()["key"]
            # The first key is for an administrator, and locks the door behind it.
            http.headers.setdefault("Authorization", f"Bearer {keys[role]}")
    return keys


async def check(url: str, key: str, folder: Path, *routes: str) -> None:
    exit_code, output = await schemathesis(url, folder, *OPTIONS, *routes, "--header", f"Authorization: Bearer {key}")
    assert exit_code == 0, output


def is_let_in(url: str, key: str) -> bool:
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.get(f"{url}/v1/models", headers=headers, timeout=60.0, trust_env=False).is_success


async def test_no_answer_contradicts_the_page_whoever_asks(
    short_cluster: UpCluster, keys: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    url = short_cluster.url
    async with asyncio.TaskGroup() as group:
        for role, routes in ROUTES.items():
            # In a folder each: they would share what they keep there.
            group.create_task(check(url, keys[role], tmp_path_factory.mktemp(role), *routes))
    # Not all was refused.
    assert all(is_let_in(url, key) for key in keys.values())
    locking = (f"--include-path={path}" for path in LOCKING)
    await check(url, keys["admin"], tmp_path_factory.mktemp("locking"), *locking)
    log = short_cluster.log.read_text()
    assert "Traceback" not in log, log
