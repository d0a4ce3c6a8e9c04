"""A client of this project's websocket: one socket for each request that runs, kept for the next."""

from collections.abc import AsyncGenerator

import msgspec
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from punica_serve.bench.serving.serving_workloads import ServedRequest
from punica_serve.errors import ClusterUnavailable, RequestFailed
from punica_serve.learned_types import learned
from punica_serve.links.dial import dial

_PATH = "/v1/generate/stream"


class _Frame(msgspec.Struct):
    """The fields of a frame that are read."""

    index: int = 0
    token_ids: tuple[int, ...] = ()
    finish_reason: str | None = None
    error: dict[str, object] | None = None


class SocketClient:
    """Keeps sockets open between requests, as many as run at once."""

    def __init__(self, url: str, *, adapter_name: str, key: str | None, cache_salt: str) -> None:
        """``adapter_name`` has ``{}`` where an adapter's number goes. Requests share prefixes under one salt only."""
        self._url, self._adapter_name, self._key, self._cache_salt = url, adapter_name, key, cache_salt
        self._decode = msgspec.json.Decoder(learned(_Frame)).decode
        self._idle: list[ClientConnection] = []

    async def stream(self, request: ServedRequest) -> AsyncGenerator[int, None]:
        """See ``Client.stream``."""
        socket = self._idle.pop() if self._idle else await dial(self._url, _PATH, self._key)
        is_whole = False
        try:
            await socket.send(self._frame(request))
            while not is_whole:
                frame = self._decode(await socket.recv(decode=False))
                if frame.error is not None:
                    raise RequestFailed(str(frame.error.get("message", frame.error)))
                if frame.token_ids:
                    yield frame.index + len(frame.token_ids)
                is_whole = frame.finish_reason is not None
        except ConnectionClosed as error:
            raise ClusterUnavailable(f"{self._url} closed a websocket: {error}") from error
        finally:
            if is_whole:
                self._idle.append(socket)
            else:
                await socket.close()

    async def aclose(self) -> None:
        for socket in self._idle:
            await socket.close()
        self._idle.clear()

    def _frame(self, request: ServedRequest) -> str:
        document = {
            "op": "generate",
            "request_id": "0",
            "input_ids": request.prompt_ids,
            "max_tokens": request.max_tokens,
            "temperature": 0.0,
            "ignore_eos": True,
            "cache_salt": self._cache_salt,
        }
        if request.adapter is not None:
            document["lora_id"] = self._adapter_name.replace("{}", str(request.adapter))
        return msgspec.json.encode(document).decode()
