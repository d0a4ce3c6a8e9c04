from pathlib import Path

import pytest
from fsspec.registry import known_implementations

from punica_serve.errors import ConfigError
from punica_serve.store.credentials import Credentials
from punica_serve.store.secrets import resolved


def test_the_longest_prefix_counts() -> None:
    credentials = Credentials(
        {"https://host/": {"headers": {"A": "1"}}, "https://host/team": {"headers": {"A": "2"}}, "s3://b": {"key": "k"}}
    )
    assert credentials.headers("https://host/team/x") == {"A": "2"}
    assert credentials.headers("https://host/team-b/x") == {"A": "1"}
    assert credentials.headers("https://other/team/x") == {}


def test_the_hub_is_read_anonymously_unless_a_token_is_given() -> None:
    credentials = Credentials({"hf://org": {"token": "hf_x"}})
    assert credentials.filesystems("hf://org/repo").open("hf://org/repo")[0].token == "hf_x"
    assert credentials.filesystems("hf://other/repo").open("hf://other/repo")[0].token is False


def test_secrets_come_from_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_text("from a file\n")
    monkeypatch.setenv("A_SECRET", "from the environment")
    options = {"key": {"env": "A_SECRET"}, "deep": {"secret": {"file": str(tmp_path / "secret")}}, "plain": 3}
    assert resolved(options) == {"key": "from the environment", "deep": {"secret": "from a file"}, "plain": 3}


def test_missing_secrets_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="NO_SUCH_VARIABLE"):
        resolved({"key": {"env": "NO_SUCH_VARIABLE"}})
    with pytest.raises(ConfigError, match="missing"):
        resolved({"key": {"file": str(tmp_path / "missing")}})


def test_a_source_whose_package_is_not_installed_is_not_called_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = {"class": "no_such_package.FileSystem", "err": "Install no_such_package to read it"}
    monkeypatch.setitem(known_implementations, "lacking", lacking)
    with pytest.raises(ConfigError, match=r"^lacking:// needs a package that is not installed: ") as refused:
        Credentials({}).filesystems("lacking://bucket/x").open("lacking://bucket/x")
    assert refused.value.param is None
