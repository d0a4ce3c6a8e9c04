from pathlib import Path
from typing import Any

import pytest

from punica_serve.config.cluster import parse_config
from punica_serve.errors import ConfigError


def mistakes(folder: Path, tls: Any) -> list[str]:
    """Errors about the settings, by key."""
    with pytest.raises(ConfigError) as caught:
        parse_config({"engine": {"model": "base"}, "tls": tls}, source="x", folder=folder)
    return [line.removeprefix("x: ") for line in caught.value.message.splitlines()]


def test_a_file_that_can_not_be_read_is_told_with_those_that_are_not_given(tmp_path: Path) -> None:
    assert mistakes(tmp_path, {"cert": "host.pem"}) == [
        "`tls.key`: is missing",
        "`tls.ca`: is missing",
        f"`tls.cert`: can't be read: No such file or directory, got '{tmp_path}/host.pem'",
    ]


def test_of_a_file_that_can_be_read_nothing_is_told(tmp_path: Path) -> None:
    (tmp_path / "host.pem").touch()
    told = mistakes(tmp_path, {"cert": "host.pem", "key": 3})
    assert told == ["`tls.key`: must be a path, got 3", "`tls.ca`: is missing"]


def test_other_mistakes_are_told_as_everywhere(tmp_path: Path) -> None:
    told = mistakes(tmp_path, {"cert": "", "keys": "k", "key": "/k", "ca": "/a"})
    assert told[:2] == [
        "`tls.keys`: is not a known setting; did you mean `tls.key`?",
        "`tls.cert`: must not be empty, got ''",
    ]
    assert [line.partition(",")[0] for line in told[2:]] == [
        f"`tls.{key}`: can't be read: No such file or directory" for key in ("ca", "key")
    ]
    assert mistakes(tmp_path, 3) == ["`tls`: must be a mapping, got 3"]
