from typing import Any

import pytest

from punica_serve.config.store_section import SourcesConfig
from punica_serve.errors import Forbidden, InvalidRequest
from punica_serve.store.source_policy import SourcePolicy, plain_uri


def policy(is_admin: bool = False, **fields: Any) -> SourcePolicy:
    return SourcePolicy(SourcesConfig(**fields), is_admin)


@pytest.mark.parametrize(
    ("uri", "plain"),
    [
        ("hf://org/repo@main/sub/", "hf://org/repo@main/sub"),
        ("HTTPS://Example.COM/Folder/", "https://example.com/Folder"),
        ("https://[2001:4860::1]:8443/x", "https://[2001:4860::1]:8443/x"),
        ("s3://Bucket/key", "s3://Bucket/key"),
        ("/data/my adapters/x", "file:///data/my%20adapters/x"),
        ("file:///data/x", "file:///data/x"),
    ],
)
def test_plain_form(uri: str, plain: str) -> None:
    assert plain_uri(uri) == plain


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "relative/folder",
        "ftp://host/x",
        "gs://bucket/x",
        "simplecache::s3://bucket/x",
        "hf://org/repo::file:///etc",
        "s3://bucket/a/../b",
        "https://host/a/%2e%2e/b",
        "/data/\0x",
        "file:///data/%00x",
        "https://host/a/..%2fb",
        "/data/../etc",
        "https://user:password@host/x",
        "https://host\\@evil/x",
        "https://host /x",
        "https://host/x\n",
        "https://host/x?token=1",
        "https://host/x#y",
        "https:///x",
        "https://host:port/x",
        "https://[::1/x",
        "file://host/x",
        "s3:///key",
    ],
)
def test_what_is_no_plain_uri_is_refused(uri: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        plain_uri(uri)
    assert caught.value.param == "uri"


@pytest.mark.parametrize(
    ("uri", "allowed"),
    [
        ("https://any.host/x", ("https://",)),
        ("s3://bucket/team/x", ("s3://bucket/team",)),
        ("s3://bucket/team/x", ("hf://", "s3://bucket/team/")),
        ("file:///data/x", ("file:///data/",)),
    ],
)
def test_tenants_may_use_what_is_allowed(uri: str, allowed: tuple[str, ...]) -> None:
    assert policy(allowed=allowed).admit(uri) == uri


@pytest.mark.parametrize(
    ("uri", "allowed"),
    [
        ("http://any.host/x", ("https://",)),
        ("s3://bucket/team-b/x", ("s3://bucket/team",)),
        ("https://good.host.evil.com/x", ("https://good.host",)),
        ("/etc", ("https://", "hf://")),
        ("file:///etc", ()),
    ],
)
def test_tenants_may_not_use_the_rest_and_admins_may(uri: str, allowed: tuple[str, ...]) -> None:
    with pytest.raises(Forbidden, match="registered from") as caught:
        policy(allowed=allowed).admit(uri)
    assert caught.value.param == "uri"
    policy(is_admin=True, allowed=allowed).admit(uri)


@pytest.mark.parametrize("address", ["93.184.215.14", "2606:4700::1111"])
def test_public_addresses_may_be_reached(address: str) -> None:
    assert policy().may_reach(address)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.8.8.8",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "::1",
        "::",
        "fe80::1%eth0",
        "fd00::1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "2002:7f00:1::",
        "64:ff9b::a00:1",
    ],
)
def test_private_addresses_may_not_unless_an_admin_says_so(address: str) -> None:
    assert not policy().may_reach(address)
    assert policy(is_admin=True).may_reach(address)
    assert policy(private_networks=("10.0.0.0/8",)).may_reach("10.1.2.3")
