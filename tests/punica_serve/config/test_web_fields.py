from pathlib import Path
from typing import Any

import pytest

from punica_serve.config.cluster import parse_config
from punica_serve.config.web_fields import with_mapped
from punica_serve.errors import ConfigError


def frontend(**settings: Any) -> Any:
    document = {"engine": {"model": "demo:model"}, "frontend": settings}
    return parse_config(document, source="cluster.yaml", folder=Path()).frontend


def test_by_default_this_machines_proxies_are_trusted_and_no_other_page_is_let_in() -> None:
    assert frontend().trusted_proxies == ("127.0.0.1", "::1")
    assert frontend().cors_origins == ()


def test_proxies() -> None:
    assert frontend(trusted_proxies=["10.0.0.7", "10.0.0.0/8", "fd00::/8"]).trusted_proxies[1] == "10.0.0.0/8"
    assert frontend(trusted_proxies=[]).trusted_proxies == ()


@pytest.mark.parametrize("proxy", ["*", "proxy.example.com", "10.0.0.1/8", "10.0.0.1:80", ""])
def test_what_is_no_proxy(proxy: str) -> None:
    with pytest.raises(ConfigError, match=r"frontend\.trusted_proxies\.0"):
        frontend(trusted_proxies=[proxy])


@pytest.mark.parametrize(
    "origin", ["https://app.example.com", "http://localhost:3000", "http://[::1]:3000", "tauri://localhost", "*"]
)
def test_origins(origin: str) -> None:
    assert frontend(cors_origins=[origin]).cors_origins == (origin,)


@pytest.mark.parametrize(
    "origin",
    ["app.example.com", "https://app.example.com/", "https://App.example.com", "https://a.example:443", "null", ""],
)
def test_what_is_no_origin(origin: str) -> None:
    with pytest.raises(ConfigError, match=r"frontend\.cors_origins\.0"):
        frontend(cors_origins=[origin])


def test_an_ipv6_socket_sees_other_addresses() -> None:
    assert with_mapped(("10.0.0.0/8", "::1")) == ["10.0.0.0/8", "::ffff:a00:0/104", "::1/128"]
