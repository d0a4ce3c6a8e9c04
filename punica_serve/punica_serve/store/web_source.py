"""Adapter sources on web servers. Every address is checked after it is resolved, and so is every redirect.

fsspec's own client follows redirects wherever they lead, so this module speaks HTTP itself.
"""

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from ipaddress import ip_address
from pathlib import Path

from aiohttp import (
    ClientConnectorError,
    ClientResponse,
    ClientSession,
    ClientSSLError,
    ClientTimeout,
    DummyCookieJar,
    InvalidURL,
    TCPConnector,
    ThreadedResolver,
)
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from punica_serve.errors import AdapterRejected, Forbidden, StoreUnavailable
from punica_serve.store.file_sink import FileSink
from punica_serve.store.pace import MinRate, Pace
from punica_serve.store.source_errors import is_refusal, source_refusals
from punica_serve.store.source_policy import SourcePolicy
from punica_serve.store.threads import StoreThreads

_MAX_REDIRECTS = 5
_CHUNK_BYTES = 1 << 20
#: An IPv4 address in a form that only some systems accept, such as 2130706433 or 127.1; it would bypass our resolver.
_SPELLS_ADDRESS = re.compile(r"[0-9.]+")
#: How long a server may be silent.
_TIMEOUT = ClientTimeout(total=None, sock_connect=5, sock_read=20)
_MIN_RATE = MinRate()
#: Time limit for writing a chunk to the disk.
_DISK_TIMEOUT_S = 20.0


class _CheckedResolver(AbstractResolver):
    """Resolves names to addresses that the policy allows; connections use exactly these."""

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
            raise AdapterRejected(f"there is no host called {host[:200]!r}; check the spelling of the URI", param="uri")
        if not results or not all(self._policy.may_reach(result["host"]) for result in results):
            raise _no_public_address(host)
        return results

    async def close(self) -> None:
        await self._resolver.close()


class WebSource:
    """A web server's folder, read for one caller."""

    def __init__(
        self, session: ClientSession, url: URL, headers: Mapping[str, str], policy: SourcePolicy, threads: StoreThreads
    ) -> None:
        self._session = session
        self._url = url
        self._headers = headers
        self._policy = policy
        self._threads = threads
        self._has_answered = False

    @classmethod
    @asynccontextmanager
    async def open(
        cls, uri: str, headers: Mapping[str, str], policy: SourcePolicy, threads: StoreThreads
    ) -> "AsyncIterator[WebSource]":
        """Opens the source. ``threads`` write its files."""
        connector = TCPConnector(resolver=_CheckedResolver(policy), use_dns_cache=False)
        async with ClientSession(
            connector=connector, timeout=_TIMEOUT, cookie_jar=DummyCookieJar(), auto_decompress=False
        ) as session:
            yield cls(session, URL(uri), headers, policy, threads)

    async def fetch(self, path: Path, max_adapter_bytes: int) -> bool:
        """Downloads the source's file of that name to ``path``. False if the server has none."""
        async with self._get(self._url / path.name) as response:
            if response.status in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE):
                return False
            _check_status(response, path.name)
            on_thread = partial(self._threads.call, timeout_s=_DISK_TIMEOUT_S)
            sink = await on_thread(partial(FileSink, path, max_adapter_bytes))
            try:
                async for chunk in _chunks(response, path.name):
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
                    response = await self._ask(url)
                target = response.headers.get("Location") if response.status // 100 == 3 else None
                next_url = url.join(URL(target)) if target else None
            except (InvalidURL, ValueError) as error:
                raise AdapterRejected(
                    f"{self._url} is, or redirects to, a malformed URL: {error}", param="uri"
                ) from error
            async with response:
                if next_url is None:
                    yield response
                    return
            url = next_url
        raise AdapterRejected(f"{self._url} redirects more than {_MAX_REDIRECTS} times", param="uri")

    async def _ask(self, url: URL) -> ClientResponse:
        """Only an address that never answered may be the caller's mistake; one behind it, or later, is down."""
        try:
            response = await self._session.get(url, headers=self._headers_for(url), allow_redirects=False)
        except ClientConnectorError as error:
            if not self._has_answered or isinstance(error, ClientSSLError):
                raise
            raise StoreUnavailable("the source has stopped answering; try again later") from error
        self._has_answered = True
        return response

    def _headers_for(self, url: URL) -> dict[str, str]:
        """Headers for a URL. Credentials are only sent to the server that they are meant for."""
        credentials = self._headers if url.origin() == self._url.origin() else {}
        return {"Accept-Encoding": "identity", **credentials}

    def _check_place(self, url: URL) -> None:
        """Checks a URL as far as possible before its name is resolved."""
        if url.scheme not in ("https", self._url.scheme) or not url.host:
            raise AdapterRejected(f"{self._url} redirects to a URL that is not https://", param="uri")
        try:
            ip_address(url.host)
        except ValueError:
            if not _SPELLS_ADDRESS.fullmatch(url.host):
                return  # a name, which is checked once it is resolved
            raise _no_public_address(url.host) from None
        if not self._policy.may_reach(url.host):
            raise _no_public_address(url.host)


async def _chunks(response: ClientResponse, name: str) -> AsyncIterator[bytes]:
    """The body in chunks. Raises StoreUnavailable if they come too slowly."""
    loop, pace = asyncio.get_running_loop(), Pace(_MIN_RATE)
    while True:
        began_s = loop.time()
        deadline = asyncio.timeout(pace.patience_s)
        try:
            async with deadline:
                chunk = await response.content.read(_CHUNK_BYTES)
        except TimeoutError as error:
            if not deadline.expired():  # aiohttp's own timeout for a silent server
                raise
            message = f"the source sends {name} more slowly than {_MIN_RATE}; try again later, or upload the adapter"
            raise StoreUnavailable(message) from error
        if not chunk:
            return
        pace.note(loop.time() - began_s, len(chunk))
        yield chunk


def _check_status(response: ClientResponse, name: str) -> None:
    status = response.status
    if is_refusal(status):
        message = f"the source answers with {status} for {name}; give the cluster access to it"
        raise AdapterRejected(message, param="uri")
    if status != HTTPStatus.OK:
        raise StoreUnavailable(f"the source answers with {status} for {name}; try again later")


def _no_public_address(host: str) -> Forbidden:
    return Forbidden(f"{host[:200]!r} has no public address; upload the adapter, or ask an administrator", param="uri")
