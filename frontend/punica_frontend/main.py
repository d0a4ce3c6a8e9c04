"""The frontend as a process: reads the model folder, binds the port, serves until cancelled."""

import asyncio
import contextlib
import logging
import socket
import sys
import threading
from collections.abc import Iterator

import uvicorn
from fastapi import FastAPI

from punica_frontend.app import create_app, max_body_bytes
from punica_frontend.scheduler_client import WireSchedulerClient
from punica_serve.adapters.catalog import AdapterCatalog
from punica_serve.adapters.dummy import dummy_adapters
from punica_serve.config import ClusterConfig
from punica_serve.errors import ConfigError
from punica_serve.model_config import ModelConfig, read_model_config
from punica_serve.notify import READY, notify
from punica_serve.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

#: For answers under way when the frontend is told to stop; connections that are still open then are cut.
SHUTDOWN_TIMEOUT_S = 2.0
#: A client that takes nothing of its answer for so long is as good as gone, and its connection is cut.
SEND_TIMEOUT_S = 60.0
#: Of a request line and its headers.
MAX_HEADER_BYTES = 64 << 10
#: Clients that keep a connection for their next request save a handshake.
KEEP_ALIVE_S = 75
BACKLOG = 2_048


async def serve(config: ClusterConfig, token: str, *, scheduler_url: str, host: str | None, port: int | None) -> None:
    """Runs a frontend until cancelled; ``host`` and ``port`` override the config's.

    Raises ConfigError for an address that can't be had or a scheduler URL that is none, and ModelRejected for a model
    folder that can't be served.
    """
    host = config.frontend.host if host is None else host
    port = config.frontend.port if port is None else port
    with bind(host, port) as listener:
        model, tokenizer, catalog = await _read_models(config)
        client = WireSchedulerClient(scheduler_url, token)
        app = create_app(client, catalog, tokenizer, model, config.engine)
        server = http_server(app, max_body_bytes=max_body_bytes(model, config.engine))
        log.info("listening on http://%s:%d", host, listener.getsockname()[1])
        notify(READY)
        await _run(server, listener, client)


@contextlib.contextmanager
def bind(host: str, port: int) -> Iterator[socket.socket]:
    """A listening socket, closed at the end. Raises ConfigError that names the address."""
    listener: socket.socket | None = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if sys.platform == "linux":
            # Connections inherit it. The kernel counts from the last byte that the client took, and cuts for good,
            # where closing from here would wait until the client takes what is left. Other systems have no such option.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(1000 * SEND_TIMEOUT_S))
        listener.bind(address)
        listener.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        if listener:
            listener.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"can't listen on {host}:{port}: {reason}; choose another with --port", param="port"
        ) from error
    with listener:
        yield listener


class EmbeddedServer(uvicorn.Server):
    """A server whose signals are the caller's: it stops when its task is told to."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Cuts what is still open after SHUTDOWN_TIMEOUT_S: handlers see that and end, as with any client that left."""
        cutting = asyncio.get_running_loop().call_later(SHUTDOWN_TIMEOUT_S, self._cut_connections)
        try:
            await super().shutdown(sockets)
        finally:
            cutting.cancel()

    def _cut_connections(self) -> None:
        for connection in self.server_state.connections:
            connection.transport.abort()


def http_server(app: FastAPI, *, max_body_bytes: int) -> EmbeddedServer:
    """The server of ``app``. It receives websocket frames of up to twice ``max_body_bytes``, for the app to refuse."""
    config = uvicorn.Config(
        app,
        log_config=None,
        log_level="warning",
        access_log=False,
        lifespan="off",
        http="h11",
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        ws="websockets-sansio",
        ws_max_size=2 * max_body_bytes,
        ws_per_message_deflate=False,
        timeout_keep_alive=KEEP_ALIVE_S,
    )
    return EmbeddedServer(config)


async def _read_models(config: ClusterConfig) -> tuple[ModelConfig, Tokenizer, AdapterCatalog]:
    """Takes as long as reading the files of all adapters does, unless it is cancelled."""
    stop = threading.Event()

    def read() -> tuple[ModelConfig, Tokenizer, AdapterCatalog]:
        engine = config.engine
        model = read_model_config(engine.model)
        tokenizer = Tokenizer.from_folder(engine.tokenizer_folder)
        catalog = AdapterCatalog.load(
            config.adapters,
            model,
            base_name=engine.served_name,
            strict_base=config.strict_base,
            dummies=dummy_adapters(config.dummy_adapters.count, config.dummy_adapters.rank, model),
            stop=stop,
        )
        return model, tokenizer, catalog

    try:
        return await asyncio.to_thread(read)
    finally:
        stop.set()  # the thread goes on when this is cancelled, and the process would wait for its end


async def _run(server: uvicorn.Server, listener: socket.socket, client: WireSchedulerClient) -> None:
    """Serves and keeps the link to the scheduler; when one of them ends, or the caller wants an end, so does the other.

    The link goes first: then every request ends with an error of its own, and none holds the server up.
    """
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    linking = asyncio.create_task(client.run())
    try:
        done, _ = await asyncio.wait((serving, linking), return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        linking.cancel()
        await asyncio.wait((linking,))
        server.should_exit = True
        await asyncio.wait((serving,))
