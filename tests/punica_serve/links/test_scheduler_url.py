import os
from pathlib import Path

import pytest

from punica_serve.errors import ClusterUnavailable
from punica_serve.links.scheduler_url import current_url


def test_a_url_is_itself() -> None:
    assert current_url("ws://127.0.0.1:8100") == "ws://127.0.0.1:8100"


def test_a_file_is_read_each_time(tmp_path: Path) -> None:
    file = tmp_path / "url"
    for url in ("ws://a:1", "ws://b:2"):
        file.write_text(f"{url}\n")
        assert current_url(f"@{file}") == url


def test_a_file_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    with pytest.raises(ClusterUnavailable, match=r"can't be read from .*/url: No such file"):
        current_url(f"@{tmp_path}/url")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ClusterUnavailable, match=r"/pipe: it is not a regular file$"):  # and no read blocks
        current_url(f"@{tmp_path}/pipe")
    (tmp_path / "url").touch()
    with pytest.raises(ClusterUnavailable, match=r"is not in .*/url yet"):
        current_url(f"@{tmp_path}/url")
