"""HTTP and websocket transport: sockets, limits, and everything below the routes.

The classes of ``uvicorn_http``, ``uvicorn_websocket`` and ``uvicorn_server`` build on uvicorn's undocumented parts, and
nothing else does. pyproject.toml bounds uvicorn's version, and tests/frontend/http/test_uvicorn_parts.py names a part
that is missing.

No setting of uvicorn bounds what one client may cost, so these classes do: time for a head, time to take an answer, and
memory. A client that stops reading fills the transport's buffer (MAX_BUFFER_BYTES) and the kernel's. From then on
nothing is written for it, its requests' tokens wait merged in their LiveRequests, and its connection is ended after
STALL_TIMEOUT_S.
"""
