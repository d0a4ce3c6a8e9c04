"""The undocumented parts of uvicorn and websockets on which our HTTP server is built are still there.

A version that lacks one fails a test which has the part's name.
"""

import ast
import asyncio
import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.server import ServerProtocol

import punica_frontend
from punica_frontend.http.handshake import Handshake
from punica_frontend.http.uvicorn_http import GuardedHttp
from punica_frontend.http.uvicorn_server import EmbeddedServer
from punica_frontend.http.uvicorn_websocket import GuardedWebSocket

#: Only ``serve`` makes these.
MADE_WHILE_SERVING = {"lifespan", "servers"}
#: Public names that a class of ours adds.
OURS = {"is_unreadable", "refusal"}


def bases() -> dict[type, object]:
    """An object of the base of each of our classes."""
    config = uvicorn.Config(cast(Any, None), log_config=None)
    options: dict[str, Any] = {"config": config, "server_state": ServerState(), "app_state": {}}
    loop = cast(asyncio.AbstractEventLoop, object())
    return {
        GuardedHttp: H11Protocol(**options, _loop=loop),
        GuardedWebSocket: WebSocketsSansIOProtocol(**options, _loop=loop),
        EmbeddedServer: uvicorn.Server(config),
        Handshake: ServerProtocol(),
    }


def parts_of(kind: type) -> Iterator[str]:
    """Names that a class of ours takes from its base: what it calls, reads or overrides there."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(definition, ast.ClassDef)
    methods = {node.name for node in definition.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    assigned, read, inherited = set[str](), set[str](), set[str]()
    for node in ast.walk(definition):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
            (assigned if isinstance(node.ctx, ast.Store) else read).add(node.attr)
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "super()":
            inherited.add(node.attr)
    private = {name for name in methods | assigned if name.startswith("_")}
    yield from sorted(inherited | ((methods | assigned | read) - private - OURS - MADE_WHILE_SERVING))


PARTS = [(kind, part) for kind in (GuardedHttp, GuardedWebSocket, EmbeddedServer, Handshake) for part in parts_of(kind)]


@pytest.mark.parametrize(("kind", "part"), PARTS, ids=lambda value: getattr(value, "__name__", value))
def test_the_base_class_still_has_the_part(kind: type, part: str) -> None:
    base = bases()[kind]
    assert hasattr(base, part), f"{type(base).__name__}.{part} is gone, and {kind.__name__} needs it"


def test_parts_are_found_in_all_their_forms() -> None:
    names = {f"{kind.__name__}.{part}" for kind, part in PARTS}
    assert {"GuardedHttp._should_upgrade", "GuardedHttp.conn", "GuardedHttp.send_400_response"} <= names
    assert {"GuardedWebSocket.queue", "EmbeddedServer.capture_signals", "Handshake.accept_called"} <= names


@pytest.mark.parametrize("part", sorted(MADE_WHILE_SERVING))
def test_serving_still_makes_the_part(part: str) -> None:
    assert f"self.{part}" in inspect.getsource(uvicorn.Server)


def test_two_modules_alone_import_from_inside_uvicorn() -> None:
    root = Path(punica_frontend.__file__).parent
    importers = {
        file.relative_to(root).as_posix()
        for file in root.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("uvicorn.")
    }
    assert importers == {"http/uvicorn_http.py", "http/uvicorn_websocket.py"}
