"""Sends requests at their arrival times over frontends' websockets, and checks each stream for gaps."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from punica_serve.adapters.dummy import dummy_name
from punica_serve.errors import ClusterUnavailable
from punica_serve.learned_types import learned
from punica_serve.links.client_errors import no_answer
from punica_serve.links.https_client import client_context
from punica_serve.protocol import Slo
from punica_serve.simulation.arrivals import Arrivals

#: Websockets to each frontend, because each may carry a limited number of live requests.
_NUM_SOCKETS = 8
#: Real seconds for requests to end after the last has been sent.
MAX_DRAIN_S = 600.0

#: Prompts repeat one token: a simulated GPU ignores it, and for a real one all tokens take the same time.
_NUM_PROMPT_TOKENS_USED = 200


class _Frame(msgspec.Struct):
    """The fields of an answer's frame that are checked."""

    request_id: str
    index: int
    token_ids: tuple[int, ...] = ()
    finish_reason: str | None = None
    error: dict[str, object] | None = None


@dataclass(slots=True)
class ReplayedStream:
    """One request, in seconds since the start."""

    sent_s: float
    num_tokens: int = 0
    first_token_s: float | None = None
    #: When its newest token came.
    last_token_s: float | None = None
    ended_s: float | None = None
    #: Why it failed; None if it did not.
    error: str | None = None

    def take(self, frame: _Frame, now_s: float) -> None:
        if frame.index != self.num_tokens and self.error is None:
            self.error = f"tokens {self.num_tokens} to {frame.index - 1} are missing or were sent twice"
        self.num_tokens += len(frame.token_ids)
        if frame.token_ids:
            self.last_token_s = now_s
            self.first_token_s = now_s if self.first_token_s is None else self.first_token_s
        if frame.error is not None:
            self.error = str(frame.error.get("message", frame.error))
        if frame.finish_reason is not None:
            self.ended_s = now_s


class Replay:
    """One replay of arrivals at ``speed`` simulated seconds in a second. Its clock starts when it is made."""

    def __init__(self, arrivals: Arrivals, slos: Sequence[Slo], *, speed: float) -> None:
        """``slos`` has one for each request, in simulated seconds."""
        self._arrivals = arrivals
        self._slos = slos
        self._speed = speed
        self._started_s = time.monotonic()
        self._decode = msgspec.json.Decoder(learned(_Frame)).decode
        #: One for each request sent, in order.
        self.streams: list[ReplayedStream] = []
        self._num_ended = 0
        self._all_ended = asyncio.Event()

    def now_s(self) -> float:
        return (time.monotonic() - self._started_s) * self._speed

    async def run(
        self, sockets: Sequence[ClientConnection], on_progress: Callable[[float], None] = lambda _now_s: None
    ) -> None:
        """Returns when all requests have ended, or MAX_DRAIN_S after the last was sent.

        Raises ClusterUnavailable when a frontend cuts a connection.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                readers = [tasks.create_task(self._read(socket)) for socket in sockets]
                await self._send_all(sockets, on_progress)
                with contextlib.suppress(TimeoutError):  # requests without an end count as failed
                    async with asyncio.timeout(MAX_DRAIN_S):
                        await self._all_ended.wait()
                for reader in readers:
                    reader.cancel()
        except ExceptionGroup as group:
            # A cut connection can end readers and the sender at once.
            cuts, others = group.split(ClusterUnavailable)
            if cuts is None or others is not None:
                raise
            raise ClusterUnavailable(str(cuts.exceptions[0])) from None

    async def _send_all(self, sockets: Sequence[ClientConnection], on_progress: Callable[[float], None]) -> None:
        for number, due_s in enumerate(self._arrivals.times_s):
            await asyncio.sleep((due_s - self.now_s()) / self._speed)
            await self._send(sockets[number % len(sockets)], number)
            on_progress(self.now_s())

    async def _send(self, socket: ClientConnection, number: int) -> None:
        length = self._arrivals.lengths[number]
        request = {
            "op": "generate",
            "request_id": str(number),
            "input_ids": [1 + number % _NUM_PROMPT_TOKENS_USED] * length.prompt,
            "max_tokens": length.output,
            "ignore_eos": True,
            "seed": number,
        }
        if self._arrivals.adapters:
            request["lora_id"] = dummy_name(self._arrivals.adapters[number])
        if slo := _promised(self._slos[number], self._speed):
            request["slo"] = slo
        self.streams.append(ReplayedStream(self.now_s()))
        with _cuts_told():
            await socket.send(msgspec.json.encode(request).decode())

    async def _read(self, socket: ClientConnection) -> None:
        with _cuts_told():
            while True:
                self._take(self._decode(await socket.recv(decode=False)))

    def _take(self, frame: _Frame) -> None:
        self.streams[int(frame.request_id)].take(frame, self.now_s())
        if frame.finish_reason is not None:
            self._num_ended += 1
            if self._num_ended == len(self._arrivals):
                self._all_ended.set()


@contextlib.contextmanager
def _cuts_told() -> Iterator[None]:
    try:
        yield
    except ConnectionClosed as error:
        raise ClusterUnavailable(f"a frontend cut the connection: {error}") from error


def _promised(slo: Slo, speed: float) -> dict[str, float]:
    """The promises in real seconds, as the API takes them; empty without any."""
    seconds = {"first_token_s": slo.first_token_s, "time_per_token_s": slo.time_per_token_s}
    return {name: promised_s / speed for name, promised_s in seconds.items() if promised_s is not None}


@asynccontextmanager
async def connected(urls: Sequence[str], key: str | None = None) -> AsyncIterator[list[ClientConnection]]:
    """Opens websockets to the frontends in turn. Raises ClusterUnavailable if one can't be reached."""
    headers = {"Authorization": f"Bearer {key}"} if key else None
    async with AsyncExitStack() as stack:
        sockets = []
        for _ in range(_NUM_SOCKETS):
            for url in urls:
                tls = client_context() if url.startswith("https:") else None
                address = f"ws{url.removeprefix('http').rstrip('/')}/v1/generate/stream"
                try:
                    dialling = connect(address, ssl=tls, additional_headers=headers, proxy=None, compression=None)
                    sockets.append(await stack.enter_async_context(dialling))
                except (OSError, ValueError, WebSocketException) as error:
                    raise no_answer(url, error, "--live") from error
        yield sockets
