"""A client of OpenAI's completions as server-sent events, for this project and any other server.

It reads HTTP/1.1 by hand: a general client takes more time for a token than the servers that are measured here.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

import msgspec

from punica_serve.bench.serving.serving_workloads import ServedRequest
from punica_serve.errors import ClusterUnavailable, RequestFailed
from punica_serve.learned_types import learned
from punica_serve.links.client_errors import no_answer
from punica_serve.links.https_client import client_context

_MAX_LINE_BYTES = 1 << 20
#: How long to wait for the text of an error.
_ERROR_BODY_S = 1.0
_EVENT, _DONE, _END = b"data: ", b"[DONE]", b"\n\n"


class _Usage(msgspec.Struct):
    completion_tokens: int = 0


class _Choice(msgspec.Struct):
    text: str = ""


class _Chunk(msgspec.Struct):
    """The fields of a chunk that are read."""

    choices: tuple[_Choice, ...] = ()
    usage: _Usage | None = None
    error: dict[str, object] | None = None


class HttpClient:
    """Keeps connections open between requests, as many as run at once."""

    def __init__(self, url: str, *, model: str, adapter_name: str, key: str | None, cache_salt: str) -> None:
        """``adapter_name`` has ``{}`` where an adapter's number goes. Requests share prefixes under one salt only."""
        parts = urlsplit(url)
        self._url = url
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._ssl = client_context() if parts.scheme == "https" else None
        self._path = parts.path.rstrip("/") + "/v1/completions"
        self._model, self._adapter_name, self._cache_salt = model, adapter_name, cache_salt
        self._authorization = f"Authorization: Bearer {key}\r\n" if key else ""
        self._decode = msgspec.json.Decoder(learned(_Chunk)).decode
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def stream(self, request: ServedRequest, traceparent: str | None = None) -> AsyncGenerator[int, None]:
        """See ``Client.stream``. ``traceparent``: of the trace to which the request belongs."""
        with self._connection_errors():
            reader, writer = self._idle.pop() if self._idle else await self._connect()
            is_whole = False
            num_tokens = 0
            try:
                writer.write(self._head_and_body(request, traceparent))
                await self._read_head(reader)
                async for event in _events(_chunks(reader)):
                    if (num_so_far := self._num_tokens(event, num_tokens)) > num_tokens:
                        num_tokens = num_so_far
                        yield num_tokens
                is_whole = True
            finally:
                if is_whole:
                    self._idle.append((reader, writer))
                else:
                    writer.close()

    async def aclose(self) -> None:
        for _, writer in self._idle:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
        self._idle.clear()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self._host, self._port, ssl=self._ssl, limit=_MAX_LINE_BYTES)

    def _head_and_body(self, request: ServedRequest, traceparent: str | None) -> bytes:
        adapter = self._adapter_name.replace("{}", str(request.adapter))
        body = json.dumps(
            {
                "model": self._model if request.adapter is None else adapter,
                "prompt": request.prompt_ids,
                "max_tokens": request.max_tokens,
                "temperature": 0.0,
                "ignore_eos": True,
                "cache_salt": self._cache_salt,
                "stream": True,
                "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            }
        ).encode()
        trace = f"traceparent: {traceparent}\r\n" if traceparent else ""
        head = (
            f"POST {self._path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\n{self._authorization}{trace}"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    async def _read_head(self, reader: asyncio.StreamReader) -> None:
        """Raises RequestFailed unless a stream follows."""
        head = await reader.readuntil(b"\r\n\r\n")
        status, body = head.split(b" ", 2)[1].decode(), b""
        if status == "200" and b"chunked" in head.lower():
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(_ERROR_BODY_S):
                body = await reader.read(_MAX_LINE_BYTES)
        raise RequestFailed(f"HTTP {status}: {body[:500].decode(errors='replace')}")

    def _num_tokens(self, event: bytes, num_before: int) -> int:
        """Tokens so far, by a chunk's own count; a text without a count is one token.

        Raises RequestFailed for an error in the stream.
        """
        if event == _DONE:
            return num_before
        chunk = self._decode(event)
        if chunk.error is not None:
            raise RequestFailed(str(chunk.error.get("message", chunk.error)))
        if chunk.usage is not None:
            return chunk.usage.completion_tokens
        return num_before + any(choice.text for choice in chunk.choices)

    @contextmanager
    def _connection_errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            raise no_answer(self._url, error) from error
        except (ValueError, msgspec.MsgspecError) as error:
            raise ClusterUnavailable(f"{self._url} does not stream as OpenAI's API does: {error}") from error


async def _chunks(reader: asyncio.StreamReader) -> AsyncGenerator[bytes, None]:
    """The chunks of a body (RFC 9112, section 7.1)."""
    while size := int((await reader.readline()).split(b";")[0], 16):
        chunk = await reader.readexactly(size + 2)
        yield chunk[:size]
    while await reader.readline() not in (b"\r\n", b""):  # trailers
        pass


async def _events(chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """The data of each event, whichever way events are divided into chunks."""
    rest = b""
    async for chunk in chunks:
        *events, rest = (rest + chunk).replace(b"\r\n", b"\n").split(_END)
        for event in events:
            for line in event.split(b"\n"):
                if line.startswith(_EVENT):
                    yield line[len(_EVENT) :]
