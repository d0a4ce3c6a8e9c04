"""A frontend's certificate, and the authorities that its clients trust."""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from https_files import HttpsFiles, write_https_files
from punica_serve.config.tls_section import HttpsConfig
from punica_serve.errors import ConfigError
from punica_serve.links.https_client import CA_FILE_ENV, client_context
from punica_serve.links.https_context import own_context, server_context
from punica_serve.links.ssl_context import shake_hands


@pytest.fixture
def files(tmp_path: Path) -> HttpsFiles:
    return write_https_files(tmp_path / "tls", "llm.example.com")


def test_the_frontends_starter_trusts_its_certificate_by_any_name(files: HttpsFiles) -> None:
    shake_hands(server=server_context(files.config), client=own_context(files.config))


def test_no_other_certificate_is_its_own(files: HttpsFiles, tmp_path: Path) -> None:
    other = write_https_files(tmp_path / "other", "llm.example.com")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(server=server_context(other.config), client=own_context(files.config))


def test_a_certificate_that_has_expired_is_found_at_the_start(tmp_path: Path) -> None:
    files = write_https_files(tmp_path / "old", not_after=datetime.now(UTC) - timedelta(days=1))
    with pytest.raises(ConfigError, match=r"`frontend\.tls\.cert`: .* has expired; renew it"):
        server_context(files.config)


def test_the_key_of_another_certificate(files: HttpsFiles, tmp_path: Path) -> None:
    other = write_https_files(tmp_path / "other")
    with pytest.raises(ConfigError, match=r"`frontend\.tls\.key`: .* is not the key of the certificate"):
        server_context(HttpsConfig(cert=files.config.cert, key=other.config.key))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"`frontend\.tls\.cert`: can't read .*\n`frontend\.tls\.key`: can't read"):
        server_context(HttpsConfig(cert=tmp_path / "none.pem", key=tmp_path / "none.key"))


def test_clients_trust_the_file_that_is_named_and_nobody_else(
    files: HttpsFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = write_https_files(tmp_path / "other")
    monkeypatch.setenv(CA_FILE_ENV, str(files.ca))
    context = client_context()
    assert context.check_hostname
    context.check_hostname = False  # in memory there is no host name
    shake_hands(server=server_context(files.config), client=context)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(server=server_context(other.config), client=context)


def test_an_authority_that_is_none(files: HttpsFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text").write_text("text")
    for name, why in (("none", "No such file"), ("text", "holds no certificate")):
        monkeypatch.setenv(CA_FILE_ENV, str(tmp_path / name))
        with pytest.raises(ConfigError, match=why) as refused:
            client_context()
        assert refused.value.param == CA_FILE_ENV
