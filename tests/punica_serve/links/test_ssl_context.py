"""Links with TLS over loopback, with certificates of an authority that each run creates."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

from punica_serve.config.tls_section import TlsConfig
from punica_serve.errors import ClusterUnavailable, ConfigError, ProtocolError
from punica_serve.links import hello
from punica_serve.links.channel import Channel
from punica_serve.links.ssl_context import client_context, server_context
from punica_serve.protocol import (
    PROTOCOL_VERSION,
    FrontendHello,
    GetCluster,
    Limits,
    SchedulerToFrontend,
    ToScheduler,
    Welcome,
)
from waits import DEADLINE_S

ContextOf = Callable[[TlsConfig], ssl.SSLContext]

HELLO = FrontendHello(PROTOCOL_VERSION, "token", "frontend")


class Authority:
    """Signs certificates, and writes them to files for a config."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self._ca = trustme.CA()
        self.path = folder / "ca.pem"
        self._ca.cert_pem.write_to_path(str(self.path))

    def files(self, name: str, *hosts: str, not_after: datetime | None = None) -> TlsConfig:
        issued = self._ca.issue_cert(*hosts or ("127.0.0.1",), not_after=not_after)
        cert, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        issued.cert_chain_pems[0].write_to_path(str(cert))
        issued.private_key_pem.write_to_path(str(key))
        return TlsConfig(cert=cert, key=key, ca=self.path)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def stranger(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "stranger")


@asynccontextmanager
async def scheduler(tls: TlsConfig) -> AsyncIterator[str]:
    """Answers a GetCluster with Limits."""

    async def session(channel: Channel) -> None:
        await hello.accept(channel, token="token", incarnation=7)
        await channel.serve(lambda message: channel.send(Limits(message.call_id)))

    async with hello.listen("127.0.0.1", 0, ToScheduler, session, tls=server_context(tls)) as port:
        yield f"wss://127.0.0.1:{port}"


async def call(url: str, tls: TlsConfig) -> tuple[Welcome, Limits]:
    async with hello.dial(url, HELLO, SchedulerToFrontend, tls=client_context(tls)) as (channel, welcome):
        channel.send(GetCluster(5))
        return welcome, await channel.receive(5)


async def test_both_ends_of_one_authority_speak_with_each_other(authority: Authority) -> None:
    async with scheduler(authority.files("scheduler")) as url:
        assert await call(url, authority.files("runner")) == (Welcome(PROTOCOL_VERSION, 7), Limits(5))


async def test_a_peer_of_another_authority_gets_no_further_than_the_handshake(
    authority: Authority, stranger: Authority
) -> None:
    files = stranger.files("intruder")
    half_trusted = TlsConfig(cert=files.cert, key=files.key, ca=authority.path)
    context = client_context(files)
    context.load_verify_locations(half_trusted.ca)  # it trusts the scheduler, but not the other way round
    async with scheduler(authority.files("scheduler")) as url:
        with pytest.raises((ClusterUnavailable, ProtocolError)):
            async with hello.dial(url, HELLO, SchedulerToFrontend, tls=context):
                pass
        assert (await call(url, authority.files("runner")))[1] == Limits(5)


async def test_a_scheduler_of_another_authority_is_not_trusted(authority: Authority, stranger: Authority) -> None:
    async with scheduler(stranger.files("scheduler")) as url:
        with pytest.raises(ClusterUnavailable, match="its certificate can't be trusted: "):
            await call(url, authority.files("runner"))


async def test_the_schedulers_certificate_is_of_the_host_that_was_dialled(authority: Authority) -> None:
    async with scheduler(authority.files("scheduler", "scheduler.internal")) as url:
        with pytest.raises(ClusterUnavailable, match=r"IP address mismatch.* for '127\.0\.0\.1'"):
            await call(url, authority.files("runner"))


async def test_a_peer_without_tls_is_told_nothing(authority: Authority) -> None:
    async with scheduler(authority.files("scheduler")) as url:
        with pytest.raises(ClusterUnavailable, match="can't be reached"):
            async with hello.dial(url.replace("wss", "ws"), HELLO, SchedulerToFrontend):
                pass


async def test_the_url_says_wss_exactly_where_there_is_tls(authority: Authority) -> None:
    with pytest.raises(ConfigError, match=r"'ws://host:1' is not of the form wss://HOST:PORT: with `tls`"):
        await call("ws://host:1", authority.files("runner"))
    with pytest.raises(ConfigError, match=r"'wss://host:1' is not of the form ws://HOST:PORT"):
        async with hello.dial("wss://host:1", HELLO, SchedulerToFrontend):
            pass


@pytest.mark.parametrize("context_of", [server_context, client_context])
class TestFilesThatAreNoGood:
    def test_one_that_is_missing_is_named(self, authority: Authority, context_of: ContextOf) -> None:
        files = authority.files("peer")
        for key in ("cert", "key", "ca"):
            broken = files.model_copy(update={key: Path("/nowhere/it.pem")})
            with pytest.raises(ConfigError, match=rf"^`tls\.{key}`: can't read /nowhere/it\.pem: No such file[^\n]*$"):
                context_of(broken)

    def test_all_that_are_missing_are_named(self, context_of: ContextOf) -> None:
        with pytest.raises(ConfigError, match=r"^`tls\.cert`: .* /c: .*\n`tls\.key`: .* /k: .*\n`tls\.ca`: .* /a: "):
            context_of(TlsConfig(cert=Path("/c"), key=Path("/k"), ca=Path("/a")))

    def test_a_key_of_another_certificate(self, authority: Authority, context_of: ContextOf) -> None:
        files = authority.files("peer").model_copy(update={"key": authority.files("other").key})
        with pytest.raises(ConfigError, match=r"`tls\.key`: .*other\.key is not the key of .*peer\.pem"):
            context_of(files)

    def test_no_pem(self, authority: Authority, tmp_path: Path, context_of: ContextOf) -> None:
        nonsense = tmp_path / "nonsense"
        nonsense.write_text("hello")
        files = authority.files("peer")
        with pytest.raises(ConfigError, match=r"`tls\.ca`: .*nonsense holds no certificate"):
            context_of(files.model_copy(update={"ca": nonsense}))
        with pytest.raises(ConfigError, match=r"`tls\.cert`: .*nonsense and its key .* are not a pair in PEM"):
            context_of(files.model_copy(update={"cert": nonsense}))

    def test_an_expired_certificate(self, authority: Authority, context_of: ContextOf) -> None:
        files = authority.files("peer", not_after=datetime.now(UTC) - timedelta(days=1))
        with pytest.raises(ConfigError, match=r"`tls\.cert`: .*peer\.pem would be refused .* has expired; renew it"):
            context_of(files)

    def test_a_certificate_of_another_authority(
        self, authority: Authority, stranger: Authority, context_of: ContextOf
    ) -> None:
        files = authority.files("peer").model_copy(update={"ca": stranger.path})
        with pytest.raises(ConfigError, match=r"`tls\.cert`: .* would be refused by peers that trust .*stranger"):
            context_of(files)


async def test_a_link_in_tls_closes_in_time(authority: Authority) -> None:
    async with scheduler(authority.files("scheduler")) as url, asyncio.timeout(DEADLINE_S):
        await call(url, authority.files("runner"))
