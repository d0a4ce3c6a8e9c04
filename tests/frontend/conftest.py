"""A cluster that answers at once, one token for each byte, and an application over it."""

import asyncio
import contextlib
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import tokenizers
import yaml
from fastapi import FastAPI
from tokenizers import decoders, models, pre_tokenizers

from punica_frontend.admission import Admission
from punica_frontend.app import create_app, max_body_bytes
from punica_frontend.http_server import EmbeddedServer, http_server
from punica_frontend.listener import bind
from punica_frontend.live_request import Backlog, Delivery, LiveRequest, SlowReader
from punica_serve.adapters.catalog import AdapterCatalog
from punica_serve.channel import Channel
from punica_serve.config import EngineConfig
from punica_serve.errors import AdapterRejected, ClusterUnavailable, GpuNotFound
from punica_serve.model_config import GenerationDefaults, ModelConfig
from punica_serve.process import TOKEN_ENV
from punica_serve.protocol import (
    AdapterRef,
    ClusterSnapshot,
    Ending,
    FrontendHello,
    FrontendToScheduler,
    GpuInfo,
    GpuSnapshot,
    Limits,
    Message,
    Request,
    ScaleAdvice,
    TokenLogprobs,
    WireError,
)
from punica_serve.text.tokenizer import Tokenizer
from punica_serve.wire import accept, listen

EOS = 0
CONTEXT = 64
#: Of the server, at once.
MAX_CONNECTIONS = 50


class EchoCluster:
    """Answers each request with its prompt and an end of sequence; a SchedulerClient in memory."""

    def __init__(self) -> None:
        self.connected = True
        self.limits: Limits | None = Limits(num_gpus=1, max_request_tokens=None)
        self.requests: list[Request] = []
        self.live: set[str] = set()
        self.cancelled: list[str] = []
        self.failed: list[str] = []
        #: Tokens given out, all requests together.
        self.num_tokens = 0
        #: Requests wait for ``resumed`` before the token of this position.
        self.pause_at: int | None = None
        self.resumed = asyncio.Event()
        self.turns_per_token = 5
        self.answer: Callable[[Request], Iterable[int]] = lambda request: [*request.prompt_ids, EOS]
        #: What the request ends with instead of its token at ``fail_at``: an error of the cluster's, or a bug of ours.
        self.failure: WireError | Exception | None = None
        self.fail_at = 0
        self.drained: set[str] = set()
        self._answering: dict[int, asyncio.Task[None]] = {}

    async def start(self, request: Request, on_ready: Callable[[], None], backlog: Backlog) -> LiveRequest:
        self.requests.append(request)
        self.live.add(request.request_id)
        live = LiveRequest(len(self.requests), request, on_ready, backlog)
        self._answering[live.handle] = asyncio.create_task(self._answer(live))
        return live

    def stop(self, live: LiveRequest) -> None:
        self._answering.pop(live.handle).cancel()
        self.live.discard(live.request.request_id)
        if not live.is_finished:
            self.cancelled.append(live.request.request_id)

    async def _answer(self, live: LiveRequest) -> None:
        sampling = live.request.sampling
        for position, token_id in enumerate(self.answer(live.request)):
            if position == self.pause_at:
                await self.resumed.wait()
            if self.failure and position == self.fail_at:
                fail(live, self.failure)
                return
            self.num_tokens += 1
            logprobs = None if sampling.logprobs is None else TokenLogprobs(-0.5, (token_id,), (-0.5,))
            try:
                live.accept(position, token_id, logprobs)
            except SlowReader as error:
                self.failed.append(live.request.request_id)
                live.fail(WireError.of(error))
                return
            if token_id == EOS or position + 1 == sampling.max_tokens:
                live.end(Ending(live.handle, position + 1, "stop" if token_id == EOS else "length"))
                return
            # Time for everybody on the way to the client to take it before the next one comes.
            for _ in range(self.turns_per_token):
                await asyncio.sleep(0)

    async def cluster(self) -> ClusterSnapshot:
        if not self.connected:
            raise ClusterUnavailable("the scheduler can't be reached; try again")
        info = GpuInfo("CPU-1", "cpu", 32, 16, 100, {"qkv": 8})
        gpu = GpuSnapshot(info, "host", 2, 1, 1, 90, ("d1",), 7, 11, is_draining="CPU-1" in self.drained)
        return ClusterSnapshot(1, 2, (gpu,), 0, 1, 1, {"tokens": 11}, ScaleAdvice(1, ("host",)))

    async def drain_gpu(self, gpu_uuid: str, *, drain: bool) -> None:
        if gpu_uuid != "CPU-1":
            raise GpuNotFound(f"no GPU {gpu_uuid!r}; there are CPU-1")
        (self.drained.add if drain else self.drained.discard)(gpu_uuid)


def fail(live: LiveRequest, failure: WireError | Exception) -> None:
    """Ends a request with an error. An exception that is none of ours comes up where its tokens are taken."""

    def raise_it() -> Delivery:
        assert isinstance(failure, Exception)
        raise failure

    if isinstance(failure, WireError):
        live.fail(failure)
    else:
        live.take = raise_it  # type: ignore[method-assign]
        live.fail(WireError("never", "seen"))


class ScriptedScheduler:
    """The other end of the link, on which the test says what is said."""

    def __init__(self) -> None:
        self.port = 0
        self.incarnation = 1
        #: All that frontends sent, on all links so far, their hellos left out.
        self.received: list[Any] = []
        self.num_links = 0
        #: Of all links so far.
        self.frontend_ids: list[str] = []
        self._channel: Channel | None = None

    async def session(self, channel: Channel) -> None:
        hello = await accept(channel, token="secret", incarnation=self.incarnation)
        assert isinstance(hello, FrontendHello)
        self.frontend_ids.append(hello.frontend_id)
        self._channel = channel
        self.num_links += 1
        try:
            async for message in channel:
                self.received.append(message)
        finally:
            self.num_links -= 1

    @property
    def is_linked(self) -> bool:
        return self._channel is not None

    def send(self, message: Message) -> None:
        assert self._channel is not None
        self._channel.send(message)

    async def cut(self) -> None:
        """Ends the link; the frontend dials again."""
        assert self._channel is not None
        await self._channel.close("cut by the test")


@pytest.fixture
async def scheduler() -> AsyncIterator[ScriptedScheduler]:
    scheduler = ScriptedScheduler()
    async with listen("127.0.0.1", 0, FrontendToScheduler, scheduler.session) as scheduler.port:
        yield scheduler


@dataclass(frozen=True)
class FrontendProcess:
    """A frontend of its own, on the demo's model."""

    process: subprocess.Popen[bytes]
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def stream_url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/v1/generate/stream"

    @property
    def resident_bytes(self) -> int:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize()


@pytest.fixture
async def start_frontend(
    scheduler: ScriptedScheduler, tmp_path: Path
) -> AsyncIterator[Callable[..., Awaitable[FrontendProcess]]]:
    """Starts frontends that are linked to the scheduler of the test, with these settings."""
    with contextlib.ExitStack() as stack:

        async def start(**frontend: Any) -> FrontendProcess:
            num_links = scheduler.num_links
            process, port = _launch(tmp_path, scheduler.port, frontend)
            stack.enter_context(process)
            stack.callback(process.kill)
            await until(lambda: scheduler.num_links > num_links, timeout_s=60.0)
            return FrontendProcess(process, port)

        yield start


def _launch(folder: Path, scheduler_port: int, settings: dict[str, Any]) -> tuple[subprocess.Popen[bytes], int]:
    """A frontend's process, and the port that it listens on."""
    with bind("127.0.0.1", 0) as free:
        port: int = free.getsockname()[1]
    config = folder / f"{port}.yaml"
    config.write_text(yaml.safe_dump({"engine": {"model": "demo:model"}, "frontend": {"port": port, **settings}}))
    command = [sys.executable, "-P", "-m", "punica_serve.cli", "frontend", "--config", str(config)]
    link = ["--scheduler-url", f"ws://127.0.0.1:{scheduler_port}", "--log-level", "warning"]
    return subprocess.Popen([*command, *link], env={**os.environ, TOKEN_ENV: "secret"}), port


@pytest.fixture
def cluster() -> EchoCluster:
    return EchoCluster()


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """Token 0 is </s>, and each byte is a token."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE({"</s>": EOS} | {c: i for i, c in enumerate(letters, 1)}, []))
    backend.add_special_tokens(["</s>"])
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(backend)


@pytest.fixture
def model(tokenizer: Tokenizer) -> ModelConfig:
    return ModelConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-6,
        rope_theta=1e4,
        rope_scaling=None,
        rope_linear_factor=1.0,
        tie_word_embeddings=False,
        name="numbers",
        generation=GenerationDefaults(eos_token_ids=(EOS,), temperature=0.7, top_p=0.9),
    )


@pytest.fixture
def catalog() -> AdapterCatalog:
    roman = AdapterRef("d1", "/adapters/roman", 100, {"q_proj": 8})
    rejected = AdapterRejected("/adapters/broken: `r` must be a positive integer", param="r")
    return AdapterCatalog({"roman": roman}, {"broken": rejected})


@pytest.fixture
def engine() -> EngineConfig:
    return EngineConfig(model=Path("/models/numbers"), model_name="numbers")


@pytest.fixture
def admission() -> Admission:
    return Admission()


@pytest.fixture
def app(
    cluster: EchoCluster,
    admission: Admission,
    catalog: AdapterCatalog,
    tokenizer: Tokenizer,
    model: ModelConfig,
    engine: EngineConfig,
) -> FastAPI:
    return create_app(cluster, admission, catalog, tokenizer, model, engine)


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://frontend") as client:
        yield client


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with bind("127.0.0.1", 0) as listener:
        yield listener


@pytest.fixture
async def server(
    app: FastAPI, model: ModelConfig, engine: EngineConfig, listener: socket.socket
) -> AsyncIterator[EmbeddedServer]:
    """The application behind a real server."""
    server = http_server(app, max_body_bytes=max_body_bytes(model, engine), max_connections=MAX_CONNECTIONS)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await until(lambda: server.started)
        yield server
    finally:
        server.should_exit = True
        await serving


@pytest.fixture
def address(listener: socket.socket, server: EmbeddedServer) -> str:
    """HOST:PORT of the server."""
    return f"127.0.0.1:{listener.getsockname()[1]}"


async def until(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    """Waits for something to become true."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.001)


@pytest.fixture(name="until")
def until_fixture() -> Callable[..., object]:
    return until
