from pathlib import Path
from typing import Any, NoReturn

import pytest
from sqlalchemy.engine import make_url

from punica_serve.config.cluster import ClusterConfig, parse_config
from punica_serve.errors import ConfigError
from punica_serve.registry.files import CLAIM_S


def parsed(folder: Path, **settings: Any) -> ClusterConfig:
    return parse_config({"engine": {"model": "base"}, **settings}, source="x", folder=folder)


def test_the_registry_is_a_file_in_the_data_folder_unless_named(tmp_path: Path) -> None:
    assert parsed(tmp_path, data_folder="data").registry_url == f"sqlite:///{tmp_path}/data/registry.db"


def test_the_data_folder_is_where_the_desktop_keeps_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert parsed(tmp_path).data_folder == tmp_path / "punica-serve"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert parsed(tmp_path).data_folder == tmp_path / ".local/share/punica-serve"
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    assert parsed(tmp_path).data_folder == tmp_path / ".local/share/punica-serve", "as the convention has it"


def test_a_user_without_a_home_must_name_a_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: str) -> NoReturn:
        raise KeyError("no such user")

    for name in ("XDG_DATA_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    assert parsed(tmp_path, data_folder="data").data_folder == tmp_path / "data"
    with pytest.raises(ConfigError, match=r"`data_folder` is not set and the user has no home folder"):
        parsed(tmp_path)


def test_a_file_of_sqlite_is_relative_to_the_config_file(tmp_path: Path) -> None:
    assert parsed(tmp_path, registry={"url": "sqlite:///r.db"}).registry_url == f"sqlite:///{tmp_path}/r.db"
    assert parsed(tmp_path, registry={"url": "sqlite:////var/r.db"}).registry_url == "sqlite:////var/r.db"


def test_a_server_is_named_by_url(tmp_path: Path) -> None:
    url = "postgresql://punica@db.example:5433/registry"
    assert parsed(tmp_path, registry={"url": url}).registry_url == url


@pytest.mark.parametrize(
    "url",
    [
        "",
        "registry.db",
        "sqlite://",
        "sqlite:///",
        "postgresql://host",
        "mysql://host/db",
        "postgresql://[::1/db",
        "sqlite:///~nosuchuser/x",
    ],
)
def test_other_urls_are_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(ConfigError, match=r"registry\.url"):
        parsed(tmp_path, registry={"url": url})


def test_a_password_comes_from_a_file_whatever_is_in_it(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("p@ss/w:rd\n")
    config = parsed(tmp_path, registry={"url": "postgresql://punica@db:5433/registry", "password_file": "password"})
    assert config.registry_url == "postgresql://punica:p%40ss%2Fw%3Ard@db:5433/registry"
    assert make_url(config.registry_url).password == "p@ss/w:rd"
    (tmp_path / "password").unlink()
    with pytest.raises(ConfigError, match=r"registry\.password_file.*No such file"):
        _ = config.registry_url


@pytest.mark.parametrize("url", [None, "sqlite:///r.db", "postgresql://db/registry", "postgresql://u:p@db/registry"])
def test_a_password_without_a_user_of_its_own_is_refused(tmp_path: Path, url: str | None) -> None:
    with pytest.raises(ConfigError, match="postgresql://USER@HOST"):
        parsed(tmp_path, registry={"url": url, "password_file": "password"})


@pytest.mark.parametrize("timeout_s", [0.05, 61.0, float("inf")])
def test_a_call_ends_while_a_registration_still_keeps_its_files(tmp_path: Path, timeout_s: float) -> None:
    with pytest.raises(ConfigError, match=r"registry\.timeout_s"):
        parsed(tmp_path, data_folder="data", registry={"timeout_s": timeout_s})
    assert parsed(tmp_path, data_folder="data", registry={"timeout_s": 60.0}).registry.timeout_s <= CLAIM_S
