import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from punica_serve.bench.serving.http_stream import HttpClient
from punica_serve.bench.serving.serving_workloads import ServedRequest
from punica_serve.errors import ClusterUnavailable, RequestFailed

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
REQUEST = ServedRequest((5, 6), 3, 7)


def event(num_tokens: int) -> bytes:
    return b"data: " + json.dumps({"usage": {"completion_tokens": num_tokens}, "choices": []}).encode() + b"\n\n"


def chunked(*chunks: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in (*chunks, b""))


@asynccontextmanager
async def server(answer: bytes) -> AsyncIterator[tuple[HttpClient, list[bytes]]]:
    """A server that answers each request of a connection with these bytes; what it read, by request."""
    bodies: list[bytes] = []
    all_served = asyncio.TaskGroup()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                bodies.append(await reader.readexactly(length))
                writer.write(answer)
        except asyncio.IncompleteReadError:
            writer.close()
            await writer.wait_closed()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        all_served.create_task(serve(reader, writer))

    async with all_served, await asyncio.start_server(begin, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        client = HttpClient(f"http://127.0.0.1:{port}", model="base", adapter_name="a-{}", key=None, cache_salt="s")
        yield client, bodies
        await client.aclose()


async def counts(client: HttpClient, request: ServedRequest = REQUEST) -> Sequence[int]:
    return [num_tokens async for num_tokens in client.stream(request)]


async def test_tokens_are_counted_however_events_are_divided_into_chunks() -> None:
    text = event(1) + event(2) + event(3) + b"data: [DONE]\n\n"
    pieces = (text[:10], text[10:90], text[90:])
    async with server(HEAD + chunked(*pieces)) as (client, bodies):
        assert await counts(client) == [1, 2, 3]
        assert await counts(client, ServedRequest((1,), 1, None)) == [1, 2, 3]  # on the same connection
    first, second = map(json.loads, bodies)
    assert (first["model"], first["prompt"], first["max_tokens"]) == ("a-7", [5, 6], 3)
    assert second["model"] == "base" and first["ignore_eos"] and first["stream"] and first["cache_salt"] == "s"


async def test_a_server_that_does_not_count_sends_a_token_in_each_text() -> None:
    texts = b"".join(b'data: {"choices": [{"text": "%s"}]}\n\n' % text for text in (b"a", b"", b"b"))
    async with server(HEAD + chunked(texts + event(2) + b"data: [DONE]\n\n")) as (client, _):
        assert await counts(client) == [1, 2]


async def test_a_refusal_tells_its_status_and_text() -> None:
    async with server(b"HTTP/1.1 404 Not Found\r\ncontent-length: 9\r\n\r\nno model!") as (client, _):
        with pytest.raises(RequestFailed, match="HTTP 404: no model!"):
            await counts(client)


async def test_an_error_in_the_stream_fails_the_request() -> None:
    async with server(HEAD + chunked(event(1), b'data: {"error": {"message": "gone"}}\n\n')) as (client, _):
        with pytest.raises(RequestFailed, match="gone"):
            await counts(client)


async def test_a_server_that_is_not_there_is_named() -> None:
    with pytest.raises(ClusterUnavailable, match=r"no frontend answers at http://127\.0\.0\.1:1"):
        await counts(HttpClient("http://127.0.0.1:1", model="m", adapter_name="{}", key=None, cache_salt="s"))


async def test_a_server_that_sends_something_else_is_named() -> None:
    async with server(HEAD + chunked(b"data: <html>\n\n")) as (client, _):
        with pytest.raises(ClusterUnavailable, match="does not stream as OpenAI's API does"):
            await counts(client)
