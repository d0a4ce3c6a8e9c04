"""A request's memory is free again at its end, without the garbage collector, which seldom runs."""

import gc
import json
import socket
from typing import Any

import httpx
import pytest
from uvicorn.protocols.http.h11_impl import RequestResponseCycle
from websockets.asyncio.client import connect

from echo_cluster import EchoCluster
from punica_frontend.generation.request_plan import RequestPlan
from punica_frontend.http.uvicorn_server import EmbeddedServer
from punica_frontend.scheduler_link.live_request import LiveRequest
from punica_serve.protocol import WireError
from punica_serve.store.form import FormSink
from waits import DEADLINE_S, until

#: The first two have a request's prompt and its tokens, the last a part of an upload.
Held = type[LiveRequest | RequestPlan | RequestResponseCycle | FormSink]


def num_held(*kinds: Held) -> int:
    return sum(issubclass(type(each), kinds) for each in gc.get_objects())


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "42"}),
        ("/v1/generate", {"prompt": "42"}),
    ],
)
@pytest.mark.usefixtures("server", "no_collections")
async def test_a_stream_of_events_leaves_nothing(path: str, body: dict[str, Any], listener: socket.socket) -> None:
    host, port = listener.getsockname()
    async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=DEADLINE_S, trust_env=False) as client:
        for _ in range(3):
            response = await client.post(path, json={**body, "stream": True})
            assert response.status_code == 200, response.text
        await until(lambda: num_held(LiveRequest, RequestPlan) == 0)
        assert num_held(RequestResponseCycle) == 1, "the connection has its last"


@pytest.mark.usefixtures("server", "no_collections")
async def test_a_request_that_the_cluster_fails_leaves_nothing(listener: socket.socket, cluster: EchoCluster) -> None:
    """As all do at once when a link is lost."""
    cluster.failure, cluster.fail_at = WireError("request_failed", "gave up"), 1
    host, port = listener.getsockname()
    async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=DEADLINE_S, trust_env=False) as client:
        for stream in (False, True):
            response = await client.post("/v1/completions", json={"prompt": "42", "stream": stream})
            assert "gave up" in response.text
    await until(lambda: num_held(LiveRequest, RequestPlan) == 0)


@pytest.mark.usefixtures("server", "no_collections")
async def test_a_websocket_that_is_left_leaves_no_request(listener: socket.socket, cluster: EchoCluster) -> None:
    cluster.pause_at = 1
    host, port = listener.getsockname()
    async with connect(f"ws://{host}:{port}/v1/generate/stream", proxy=None) as websocket:
        await websocket.send(json.dumps({"op": "generate", "request_id": "r", "prompt": "42"}))
        await websocket.recv()
    await until(lambda: num_held(LiveRequest, RequestPlan) == 0)
    assert len(cluster.cancelled) == 1


@pytest.mark.usefixtures("no_collections")
async def test_a_websockets_request_leaves_nothing_while_the_socket_stays(
    server: EmbeddedServer, listener: socket.socket
) -> None:
    host, port = listener.getsockname()
    async with connect(f"ws://{host}:{port}/v1/generate/stream", proxy=None) as websocket:
        for _ in range(3):
            await websocket.send(json.dumps({"op": "generate", "request_id": "r", "prompt": "42"}))
            while json.loads(await websocket.recv())["finish_reason"] is None:
                pass
        assert num_held(LiveRequest) <= 1, "the writer has its last"
    assert not server.should_exit


@pytest.mark.usefixtures("server", "no_collections")
async def test_an_upload_leaves_nothing(listener: socket.socket) -> None:
    host, port = listener.getsockname()
    async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=DEADLINE_S, trust_env=False) as client:
        files = {"config": ("adapter_config.json", b"{}"), "weights": ("adapter_model.safetensors", b"no weights")}
        response = await client.post("/v1/adapters", params={"name": "roman"}, files=files)
        assert response.status_code == 400, response.text
        del files["weights"]
        assert "lacks" in (await client.post("/v1/adapters", params={"name": "roman"}, files=files)).text
    await until(lambda: num_held(FormSink) == 0)
