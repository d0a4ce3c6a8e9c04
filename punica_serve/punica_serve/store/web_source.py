"""Adapters on web servers. Every address is checked after it was resolved, and every redirect is checked anew.

fsspec's own client follows redirects wherever they lead; so this speaks HTTP itself.
"""

import re
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from ipaddress import ip_address
from pathlib import Path

from aiohttp import (
    ClientResponse,
    ClientSession,
    ClientTimeout,
    DummyCookieJar,
    InvalidURL,
    TCPConnector,
    ThreadedResolver,
)
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from punica_serve.errors import AdapterRejected, Forbidden, StoreUnavailable
from punica_serve.store.sinks import FileSink
from punica_serve.store.source_errors import is_refusal, source_refusals
from punica_serve.store.source_policy import SourcePolicy
from punica_serve.store.threads import StoreThreads

_MAX_REDIRECTS = 5
_CHUNK_BYTES = 1 << 20
#: Of an IPv4 address as some systems read it, such as 2130706433 or 127.1: no resolver of ours would see it.
_SPELLS_ADDRESS = re.compile(r"[0-9.]+")
#: How long a server may be silent.
_TIMEOUT = ClientTimeout(total=None, sock_connect=5, sock_read=20)
#: How long the disk may take for a chunk.
_DISK_TIMEOUT_S = 20.0


class _CheckedResolver(AbstractResolver):
    """Resolves names to addresses that the policy allows: the ones that are then connected to."""

    def __init__(self, policy: SourcePolicy) -> None:
        self._policy = policy
        self._resolver = ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        try:
            results = await self._resolver.resolve(host, port, family)
        except OSError as error:
            if error.errno == socket.EAI_AGAIN:
                raise
            results = []
        if not results and self._policy.is_admin:
            raise AdapterRejected(f"there is no host called {host[:200]!r}; see how the URI is spelt", param="uri")
        if not results or not all(self._policy.may_reach(result["host"]) for result in results):
            raise _no_public_address(host)
        return results

    async def close(self) -> None:
        await self._resolver.close()


class WebSource:
    """A web server's folder, for one caller."""

    def __init__(
        self, session: ClientSession, url: URL, headers: Mapping[str, str], policy: SourcePolicy, threads: StoreThreads
    ) -> None:
        self._session = session
        self._url = url
        self._headers = headers
        self._policy = policy
        self._threads = threads

    @classmethod
    @asynccontextmanager
    async def open(
        cls, uri: str, headers: Mapping[str, str], policy: SourcePolicy, threads: StoreThreads
    ) -> "AsyncIterator[WebSource]":
        """``threads`` are for what it writes."""
        connector = TCPConnector(resolver=_CheckedResolver(policy), use_dns_cache=False)
        async with ClientSession(
            connector=connector, timeout=_TIMEOUT, cookie_jar=DummyCookieJar(), auto_decompress=False
        ) as session:
            yield cls(session, URL(uri), headers, policy, threads)

    async def fetch(self, path: Path, max_adapter_bytes: int) -> bool:
        """Writes the file of the folder that is called like ``path`` there. False when the server has none."""
        async with self._get(self._url / path.name) as response:
            if response.status in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE):
                return False
            _check_status(response, path.name)
            on_thread = partial(self._threads.call, timeout_s=_DISK_TIMEOUT_S)
            sink = await on_thread(partial(FileSink, path, max_adapter_bytes))
            try:
                async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
                    await on_thread(partial(sink.write, chunk))
            finally:
                await on_thread(sink.close)
        return True

    @asynccontextmanager
    async def _get(self, url: URL) -> AsyncIterator[ClientResponse]:
        for _ in range(_MAX_REDIRECTS + 1):
            try:
                self._check_place(url)
                with source_refusals(str(url)):
                    response = await self._session.get(url, headers=self._headers_for(url), allow_redirects=False)
                target = response.headers.get("Location") if response.status // 100 == 3 else None
                next_url = url.join(URL(target)) if target else None
            except (InvalidURL, ValueError) as error:
                raise AdapterRejected(f"{self._url} is, or redirects to, a broken URL: {error}", param="uri") from error
            async with response:
                if next_url is None:
                    yield response
                    return
            url = next_url
        raise AdapterRejected(f"{self._url} redirects more than {_MAX_REDIRECTS} times", param="uri")

    def _headers_for(self, url: URL) -> dict[str, str]:
        """Credentials are for the server that they were given for alone."""
        credentials = self._headers if url.origin() == self._url.origin() else {}
        return {"Accept-Encoding": "identity", **credentials}

    def _check_place(self, url: URL) -> None:
        """Of what is known before a name is resolved."""
        if url.scheme not in ("https", self._url.scheme) or not url.host:
            raise AdapterRejected(f"{self._url} redirects to what is not https://", param="uri")
        try:
            ip_address(url.host)
        except ValueError:
            if not _SPELLS_ADDRESS.fullmatch(url.host):
                return  # a name, which will be resolved
            raise _no_public_address(url.host) from None
        if not self._policy.may_reach(url.host):
            raise _no_public_address(url.host)


def _check_status(response: ClientResponse, name: str) -> None:
    status = response.status
    if is_refusal(status):
        message = f"the source answers with {status} for {name}; see that the cluster may read it"
        raise AdapterRejected(message, param="uri")
    if status != HTTPStatus.OK:
        raise StoreUnavailable(f"the source answers with {status} for {name}; try again later")


def _no_public_address(host: str) -> Forbidden:
    return Forbidden(f"{host[:200]!r} is no name of a public address; upload the adapter, or ask an admin", param="uri")
