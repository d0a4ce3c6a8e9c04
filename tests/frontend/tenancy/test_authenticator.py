"""Doors that are open, and how they close."""

import logging
import socket
from collections.abc import Iterator

import pytest
from starlette.requests import HTTPConnection

from punica_frontend.api.caller import ANYONE
from punica_frontend.http.listener import bind
from punica_frontend.tenancy.authenticator import Authenticator, AuthMode
from punica_frontend.tenancy.exposure import auth_mode_for
from punica_frontend.tenancy.sessions import Sessions
from punica_serve.errors import ConfigError, Forbidden, Unauthorized
from punica_serve.registry.registry import Registry
from tenant_keys import Keys


def connection(**headers: str) -> HTTPConnection:
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    return HTTPConnection({"type": "http", "method": "GET", "path": "/", "headers": raw})


LOCAL = connection(host="localhost:8000")


def authenticator_of(registry: Registry, auth_mode: AuthMode) -> Authenticator:
    return Authenticator(registry, Sessions("secret"), auth_mode)


async def test_open_mode_accepts_everyone_except_other_sites_pages(registry: Registry) -> None:
    authenticator = authenticator_of(registry, "open")
    assert await authenticator.authenticate(connection(host="somewhere")) == ANYONE
    assert await authenticator.authenticate(connection(host="somewhere", authorization="Bearer nonsense")) == ANYONE
    with pytest.raises(Forbidden):
        await authenticator.authenticate(connection(host="somewhere", origin="http://evil.example"))


async def test_open_mode_stays_open(registry: Registry, keys: Keys) -> None:
    authenticator = authenticator_of(registry, "open")
    assert await authenticator.authenticate(connection(host="somewhere")) == ANYONE
    assert authenticator.is_still_valid(ANYONE)


async def test_local_mode_is_for_this_machine(registry: Registry) -> None:
    authenticator = authenticator_of(registry, "local")
    assert await authenticator.authenticate(LOCAL) == ANYONE
    with pytest.raises(Forbidden):
        await authenticator.authenticate(connection(host="rebound.example"))
    with pytest.raises(Forbidden):
        await authenticator.authenticate(connection(host="localhost", origin="http://evil.example"))


async def test_the_first_key_ends_local_mode_for_good(registry: Registry, caplog: pytest.LogCaptureFixture) -> None:
    authenticator = authenticator_of(registry, "local")
    assert await authenticator.authenticate(LOCAL) == ANYONE
    key, _ = await registry.make_key("default", "admin", "", None, by="the test")
    with caplog.at_level(logging.WARNING), pytest.raises(Unauthorized):
        await authenticator.authenticate(LOCAL)
    assert "every request needs one" in caplog.text
    assert not authenticator.is_still_valid(ANYONE)
    await registry.revoke_key(key.key_id, force=True, by="the test")
    with pytest.raises(Unauthorized):
        await authenticator.authenticate(LOCAL)


async def test_an_expired_key_is_none(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    await registry.make_key("default", "admin", "", 4e9, by="the test")
    monkeypatch.setattr("punica_frontend.tenancy.authenticator.time.time", lambda: 5e9)
    assert await authenticator_of(registry, "local").authenticate(LOCAL) == ANYONE


@pytest.fixture
def reachable() -> Iterator[socket.socket]:
    """An address that others can reach."""
    with bind("0.0.0.0", 0) as listener:
        yield listener


async def test_a_loopback_address_may_be_without_keys(
    registry: Registry, listener: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert auth_mode_for(listener, registry, insecure_no_auth=False) == "local"
    assert "NO AUTHENTICATION" in caplog.text


async def test_another_address_needs_keys(registry: Registry, reachable: socket.socket) -> None:
    with pytest.raises(ConfigError, match="punica-serve keys create"):
        auth_mode_for(reachable, registry, insecure_no_auth=False)


async def test_unless_somebody_insists(
    registry: Registry, reachable: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert auth_mode_for(reachable, registry, insecure_no_auth=True) == "open"
    assert "NO AUTHENTICATION" in caplog.text


async def test_with_keys_every_address_is_fine(
    registry: Registry, keys: Keys, reachable: socket.socket, listener: socket.socket
) -> None:
    assert auth_mode_for(reachable, registry, insecure_no_auth=False) == "keys"
    assert auth_mode_for(listener, registry, insecure_no_auth=False) == "keys"
