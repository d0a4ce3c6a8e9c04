"""Over all routes, another tenant's adapter looks exactly like one that does not exist.

A route that is missing from the table fails the first test: add it, with what it could reveal about others.
"""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from websockets.asyncio.client import connect

from echo_cluster import EchoCluster
from punica_serve.protocol import PlacedRequest
from tenant_keys import ClientOf, Keys

#: acme's, in the registry of these tests, and what its files are called there. bolt asks.
THEIRS, DIGEST = "latin", b"latin".hex().ljust(64, "0")
#: A name of the same length that no adapter has.
NOBODYS, NO_DIGEST = "lemur", b"lemur".hex().ljust(64, "0")

#: Routes that name an adapter: the body, or None where the path alone names it.
NAMING: dict[str, Any] = {
    "POST /v1/generate": {"prompt": "4", "lora_id": "NAME"},
    "POST /v1/completions": {"prompt": "4", "model": "NAME"},
    "POST /v1/chat/completions": {"messages": [{"role": "user", "content": "4"}], "model": "NAME"},
    "POST /": {"inputs": "4", "parameters": {"adapter_id": "NAME"}},
    "POST /generate": {"inputs": "4", "parameters": {"adapter_id": "NAME"}},
    "POST /generate_stream": {"inputs": "4", "parameters": {"adapter_id": "NAME"}},
    "POST /tokenize": {"prompt": "4", "model": "NAME"},
    "POST /detokenize": {"tokens": [5], "model": "NAME"},
    "GET /v1/models/{model:path}": None,
    "GET /v1/adapters/{name:adapter}": None,
    "DELETE /v1/adapters/{name:adapter}": None,
    "POST /v1/adapters/{name:path}/pin": None,
    "POST /v1/adapters/{name:path}/unpin": None,
    "POST /v1/adapters/{name:path}/prefetch": {},
    "GET /v1/adapter-deletions/{digest}": None,
    "POST /v1/unload_lora_adapter": {"lora_name": "NAME"},
    # These make an adapter of one's own: what is refused is the source, whoever has a name.
    "POST /v1/adapters": {"name": "NAME", "uri": "/nowhere"},
    "POST /v1/load_lora_adapter": {"lora_name": "NAME", "lora_path": "/nowhere"},
}

#: Routes that list many things, and must not list another tenant's.
LISTING = {
    "GET /v1/models",
    "GET /v1/adapters",
    "GET /v1/cluster",
    "GET /v1/cluster/gpus/{gpu:path}",
    "GET /v1/usage",
    "GET /info",
}

#: Administrators see everything, and nobody else anything: test_admin_routes.py.
FOR_ADMINISTRATORS = {
    "GET /v1/tenants",
    "PUT /v1/tenants/{tenant}",
    "PATCH /v1/tenants/{tenant}",
    "DELETE /v1/tenants/{tenant}",
    "GET /v1/tenants/{tenant}/grants",
    "PUT /v1/tenants/{tenant}/grants/{owner}/{name}",
    "DELETE /v1/tenants/{tenant}/grants/{owner}/{name}",
    "GET /v1/keys",
    "POST /v1/keys",
    "DELETE /v1/keys/{key_id}",
    "GET /v1/audit",
    "GET /metrics",
    "POST /v1/cluster/drain",
}

#: The same for everybody.
BLIND = {
    "GET /",
    "GET /health",
    "GET /ready",
    "GET /ping",
    "POST /ping",
    "GET /version",
    "GET /v1/generate/stream/schema",
    "GET /v1/cluster/watch/schema",
    "GET /openapi.json",
    "GET /docs",
    "GET /docs/{name}",
    "GET /dashboard",
    "GET /dashboard/{name}",
    "POST /v1/login",
    "POST /v1/logout",
}

#: Tested below, by a real server.
WEBSOCKETS = {"WS /v1/generate/stream", "WS /v1/cluster/watch"}

TABLE = NAMING.keys() | LISTING | FOR_ADMINISTRATORS | BLIND | WEBSOCKETS


def routes_of(routes: Iterable[Any]) -> Iterator[str]:
    for route in routes:
        methods = getattr(route, "methods", None) or {"WS"}
        yield from (f"{method} {route.path}" for method in methods - {"HEAD"})


async def test_every_route_is_in_the_table(app: FastAPI) -> None:
    assert set(routes_of(app.routes)) == TABLE


@pytest.fixture
def bolt(client_of: ClientOf, keys: Keys) -> httpx.AsyncClient:
    client: httpx.AsyncClient = client_of(keys.bolt)
    return client


async def answer(client: httpx.AsyncClient, route: str, name: str, digest: str) -> tuple[int, str, dict[str, str]]:
    """Returns the answer of a route that names an adapter, with the name and the digest left out."""
    method, path = route.split(" ")
    path = re.sub("{(model|name):[a-z]+}", name, path).replace("{digest}", digest)
    body = json.loads(json.dumps(NAMING[route]).replace("NAME", name))
    response = await client.request(method, path, json=body, headers={"x-request-id": "the-same"})
    headers = {key: value for key, value in response.headers.items() if key not in ("date", "server")}
    return response.status_code, response.text.replace(name, "NAME").replace(digest, "DIGEST"), headers


@pytest.mark.parametrize("prefix", ["", "acme/"])
async def test_somebody_elses_adapter_is_no_adapter(bolt: httpx.AsyncClient, prefix: str) -> None:
    for route in NAMING:
        theirs = await answer(bolt, route, prefix + THEIRS, DIGEST)
        nobodys = await answer(bolt, route, prefix + NOBODYS, NO_DIGEST)
        assert theirs == nobodys, route
        assert theirs[0] in (400, 403, 404), (route, theirs)
        assert THEIRS not in theirs[1], route


@pytest.mark.parametrize("route", sorted(LISTING))
async def test_lists_do_not_tell_of_others(
    bolt: httpx.AsyncClient, client_of: ClientOf, keys: Keys, cluster: EchoCluster, route: str
) -> None:
    cluster.resident_adapters = (DIGEST, "d1")
    cluster.placed = [PlacedRequest(f"{THEIRS}-1", "acme-id", "acme", DIGEST, 3, 5, 64, 7)]
    assert (await client_of(keys.acme).post("/v1/generate", json={"prompt": "4", "lora_id": THEIRS})).is_success
    response = await bolt.get(route.split(" ")[1].replace("{gpu:path}", "CPU-1"))
    assert response.status_code == 200
    assert THEIRS not in response.text and DIGEST not in response.text and "acme" not in response.text


async def test_how_many_adapters_a_host_holds_is_for_administrators(client_of: ClientOf, keys: Keys) -> None:
    told = {}
    for key in (keys.admin, keys.bolt):
        (gpu,) = (await client_of(key).get("/v1/cluster")).json()["gpus"]
        told[key] = gpu["num_cached_adapters"]
    assert told == {keys.admin: 5, keys.bolt: None}


async def test_websockets_do_not_either(address: str, keys: Keys) -> None:
    headers = {"authorization": f"Bearer {keys.bolt}"}
    frames = []
    async with connect(f"ws://{address}/v1/generate/stream", additional_headers=headers, proxy=None) as socket:
        for name in (THEIRS, NOBODYS, f"acme/{THEIRS}", f"acme/{NOBODYS}"):
            await socket.send(json.dumps({"op": "generate", "request_id": "1", "prompt": "4", "lora_id": name}))
            frames.append(json.loads((await socket.recv()).replace(name, "NAME")))  # type: ignore[arg-type]
    assert frames[0] == frames[1] and frames[2] == frames[3]
    assert frames[0]["error"]["code"] == "adapter_not_found"


async def test_watching_the_cluster_does_not_either(address: str, keys: Keys, cluster: EchoCluster) -> None:
    cluster.resident_adapters = (DIGEST, "d1")
    headers = {"authorization": f"Bearer {keys.bolt}"}
    async with connect(f"ws://{address}/v1/cluster/watch?per_s=5", additional_headers=headers, proxy=None) as socket:
        frames = [str(await socket.recv()) for _ in range(2)]
    assert '"d1"' in frames[1], "what one may use is told"
    assert '"num_cached_adapters":null' in frames[1]
    assert all(THEIRS not in frame and DIGEST not in frame and "acme" not in frame for frame in frames)
