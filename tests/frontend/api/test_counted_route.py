import gc
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI, Request, Response

from punica_frontend.api.counted_route import counted_route
from punica_frontend.api.errors import install_error_handlers
from punica_frontend.api.schemas import GenerateBody
from punica_frontend.metrics.metrics import Metrics

NUM_ITEMS = 9_999
JSON = {"content-type": "application/json"}
BODIES = [
    b"",
    b" ",
    b"null",
    b"[]",
    b'"text"',
    b"{}",
    b"[1,]",
    b'{"prompt": "\xff"}',
    b'{"prompt": "4", "max_tokens": 0, "seed": "x"}',
    b'{"prompt": 4}',
    b'{"input_ids": [1, [2]]}',
    b'{"prompt": "4", "max_tokens": 8.0}',
    b'{"prompt": "4", "max_tokens": 1e400}',
    b"[" * 100_000,
    b"1" * 5_000,
]
CONTENT_TYPES = [
    "application/json",
    "Application/JSON; charset=utf-8",
    "application/vnd.api+json",
    "application/jsonl",
    "text/json",
    "application",
    "application/json/x",
    "",
]


@pytest.mark.usefixtures("no_collections")
@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/v1/generate", "input_ids"),
        ("/v1/completions", "prompt"),
        ("/v1/chat/completions", "messages"),
        ("/tokenize", "prompt"),
        ("/generate", "inputs"),
    ],
)
async def test_a_refused_body_is_freed_at_once(client: httpx.AsyncClient, path: str, field: str) -> None:
    """Not at the next garbage collection."""
    response = await client.post(path, content=json.dumps({field: ["5"] * NUM_ITEMS}), headers=JSON)
    assert response.status_code in (400, 422)
    assert not [kept for kept in gc.get_objects() if type(kept) is list and len(kept) == NUM_ITEMS]


async def test_a_body_of_too_many_strings(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/generate", json={"input_ids": ["5"] * 200_000})
    assert response.status_code == 400
    assert response.json()["error"]["message"] == "the body can't be read: it has more than 65536 strings"


def app_with(router: APIRouter) -> FastAPI:
    @router.post("/", response_class=Response)
    async def endpoint(body: GenerateBody, request: Request) -> Response:
        return Response(f"{request.method} {body!r}")

    app = FastAPI()
    install_error_handlers(app)
    app.router.routes += router.routes
    return app


async def answer(app: FastAPI, content: bytes, content_type: str) -> tuple[int, Any]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://frontend") as client:
        headers = {"content-type": content_type} if content_type else {}
        response = await client.post("/", content=content, headers=headers)
        return response.status_code, response.text


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def ours(metrics: Metrics) -> FastAPI:
    return app_with(APIRouter(route_class=counted_route(metrics)))


@pytest.fixture(scope="module")
def fastapis() -> FastAPI:
    return app_with(APIRouter())


@pytest.mark.parametrize("content_type", CONTENT_TYPES)
async def test_bodies_of_each_type_are_read_as_by_fastapi(ours: FastAPI, fastapis: FastAPI, content_type: str) -> None:
    body = b'{"prompt": "4", "max_tokens": 8}'
    assert await answer(ours, body, content_type) == await answer(fastapis, body, content_type)


@pytest.mark.parametrize("body", BODIES, ids=[repr(body[:40]) for body in BODIES])
async def test_bodies_are_checked_as_by_fastapi(
    ours: FastAPI, fastapis: FastAPI, metrics: Metrics, body: bytes
) -> None:
    status, text = await answer(ours, body, "application/json")
    assert (status, text) == await answer(fastapis, body, "application/json")
    assert metrics.num_ended["invalid_request"] == (status != 200)


async def test_other_methods_are_left_to_fastapi(ours: FastAPI, metrics: Metrics) -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(ours), base_url="http://frontend") as client:
        assert (await client.put("/", content=b"{}")).status_code == 405
    assert not metrics.num_ended


async def taking_a_query(body: GenerateBody, request: Request, secret: str) -> Response:
    return Response(secret)


async def taking_both(body: GenerateBody, request: Request) -> Response:
    return Response()


def in_a_thread(body: GenerateBody, request: Request) -> Response:
    return Response()


@pytest.mark.parametrize(
    ("endpoint", "dependencies"),
    [(taking_a_query, []), (in_a_thread, []), (taking_both, [Depends(lambda: None)])],
    ids=["another parameter", "no coroutine", "a dependency"],
)
@pytest.mark.parametrize("on", ["route", "router"])
def test_nothing_that_fastapi_would_resolve_is_ignored(
    endpoint: Callable[..., Any], dependencies: list[Any], on: str, metrics: Metrics
) -> None:
    on_route, on_router = (dependencies, []) if on == "route" else ([], dependencies)
    router = APIRouter(route_class=counted_route(metrics), dependencies=on_router)
    with pytest.raises(TypeError, match="/path: an endpoint of a counted route takes `body` and `request` alone"):
        router.add_api_route("/path", endpoint, methods=["POST"], response_class=Response, dependencies=on_route)
