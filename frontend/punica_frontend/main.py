"""The frontend as a process: reads the model folder, binds the port, serves until cancelled."""

import asyncio
import contextlib
import logging
import socket
import threading

import uvicorn

from punica_frontend.admission import Admission
from punica_frontend.app import create_app, max_body_bytes
from punica_frontend.http_server import http_server
from punica_frontend.listener import bind, num_connections, raise_file_limit
from punica_frontend.scheduler_client import WireSchedulerClient
from punica_serve.adapters.catalog import AdapterCatalog
from punica_serve.adapters.dummy import dummy_adapters
from punica_serve.config import ClusterConfig
from punica_serve.model_config import ModelConfig, read_model_config
from punica_serve.notify import READY, notify
from punica_serve.process import Drain
from punica_serve.text.tokenizer import Tokenizer
from punica_serve.tls import client_context

log = logging.getLogger(__name__)


#: For the last words to requests that are cancelled at the end.
LAST_WORDS_TIMEOUT_S = 1.0


async def serve(
    config: ClusterConfig, token: str, *, scheduler_url: str, host: str | None, port: int | None, drain: Drain
) -> None:
    """Runs a frontend until cancelled or drained; ``host`` and ``port`` override the config's.

    Raises ConfigError for an address that can't be had or a scheduler URL that is none, and ModelRejected for a model
    folder that can't be served.
    """
    host = config.frontend.host if host is None else host
    port = config.frontend.port if port is None else port
    tls = client_context(config.tls) if config.tls else None
    with bind(host, port) as listener:
        model, tokenizer, catalog = await _read_models(config)
        client = WireSchedulerClient(scheduler_url, token, config.links, tls)
        admission = Admission()
        app = create_app(client, admission, catalog, tokenizer, model, config.engine)
        max_connections = num_connections(config.frontend.max_connections, raise_file_limit())
        server = http_server(app, max_body_bytes=max_body_bytes(model, config.engine), max_connections=max_connections)
        log.info("listening on http://%s:%d", host, listener.getsockname()[1])
        notify(READY)
        await _run(server, listener, client, admission, drain)


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


async def _run(
    server: uvicorn.Server, listener: socket.socket, client: WireSchedulerClient, admission: Admission, drain: Drain
) -> None:
    """Serves and keeps the link to the scheduler until one of them ends, or the drain does, or the caller cancels.

    The link goes first: then every request ends with an error of its own, and none holds the server up.
    """
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    linking = asyncio.create_task(client.run())
    draining = asyncio.create_task(_drain(admission, drain))
    try:
        done, _ = await asyncio.wait((serving, linking, draining), return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        admission.close()
        for task in (draining, linking):
            task.cancel()
        await asyncio.wait((draining, linking))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_TIMEOUT_S):
                await admission.empty()
        server.should_exit = True
        await asyncio.wait((serving,))


async def _drain(admission: Admission, drain: Drain) -> None:
    """Returns once a drain was asked for and the last request is through; its deadline is the caller's."""
    await drain.wanted()
    log.info("taking no new requests; those under way have %g s to finish", drain.timeout_s)
    admission.close()
    await admission.empty()
