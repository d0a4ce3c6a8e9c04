"""The HTTP server for an ASGI application."""

import ssl
from collections import Counter
from functools import partial
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp

from punica_frontend.http.listener import BACKLOG
from punica_frontend.http.uvicorn_http import GuardedHttp
from punica_frontend.http.uvicorn_server import EmbeddedServer
from punica_frontend.http.uvicorn_websocket import GuardedWebSocket
from punica_frontend.metrics.metrics import CutReason
from punica_serve.config.web_fields import with_mapped

#: Long enough for clients that reuse connections to save handshakes.
KEEP_ALIVE_S = 75


def http_server(
    app: ASGIApp,
    num_cut: Counter[CutReason],
    *,
    max_body_bytes: int,
    max_connections: int,
    trusted_proxies: tuple[str, ...] = (),
    tls: ssl.SSLContext | None = None,
) -> EmbeddedServer:
    """Returns the server of ``app``.

    It receives websocket frames of up to twice ``max_body_bytes``; the app refuses those beyond the limit. ``num_cut``
    counts the connections that the server ends. Forwarded addresses and schemes are believed from ``trusted_proxies``,
    a list of addresses and networks.
    """
    config = uvicorn.Config(
        app,
        log_config=None,
        log_level="error",  # its warnings report clients' mistakes: a flood of requests would flood the log
        access_log=False,
        lifespan="off",
        http=cast(Any, partial(GuardedHttp, num_cut)),  # uvicorn only calls it, with keywords
        ws=cast(Any, partial(GuardedWebSocket, num_cut)),
        ws_max_size=2 * max_body_bytes,
        ws_per_message_deflate=False,
        limit_concurrency=max_connections,
        timeout_keep_alive=KEEP_ALIVE_S,
        forwarded_allow_ips=with_mapped(trusted_proxies),
        ssl_context_factory=None if tls is None else lambda *_: tls,
        backlog=BACKLOG,
    )
    return EmbeddedServer(config)
