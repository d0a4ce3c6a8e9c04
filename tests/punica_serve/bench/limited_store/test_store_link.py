"""The server of a store, and its start."""

import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from punica_serve.adapters.folder import WEIGHTS_NAME
from punica_serve.bench.limited_store import child_program, store_link
from punica_serve.bench.limited_store.store_link import FILES, store_server
from punica_serve.errors import ConfigError
from punica_serve.protocol import AdapterRef
from waits import DEADLINE_S


def test_the_server_keeps_to_its_rate_and_its_folder(tmp_path: Path) -> None:
    (tmp_path.parent / "secret").write_bytes(b"x")
    folder = tmp_path / FILES
    adapter = AdapterRef("a", str(folder / "a"), num_bytes=2 << 20, ranks={})
    (folder / "a").mkdir(parents=True)
    (folder / "a" / WEIGHTS_NAME).write_bytes(bytes(range(256)) * 8192)
    with store_server(tmp_path, 8e6) as link:
        url = link.uri("HTTP", adapter)
        request = urllib.request.Request(f"{url}/{WEIGHTS_NAME}", headers={"Range": "bytes=300-309"})
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as response:
            assert response.status == 206 and response.read() == bytes(range(44, 54))
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{url}/../../../secret", timeout=DEADLINE_S)
        started_s = time.perf_counter()
        assert link.measured_rate(adapter) <= 8e6 * 1.2
        assert time.perf_counter() - started_s >= 0.2


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("import time; time.sleep(60)", "did not start within 0.5 s"),
        ("print('80', end='', flush=True); import time; time.sleep(60)", "did not start within 0.5 s"),
        ("", "ended before it listened"),
    ],
)
def test_a_server_that_does_not_start_holds_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, message: str
) -> None:
    (tmp_path / "other_server.py").write_text(module)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(store_link, "_MODULE", "other_server")
    monkeypatch.setattr(store_link, "_START_TIMEOUT_S", 0.5 if module else 30.0)
    monkeypatch.setattr(child_program, "_END_TIMEOUT_S", 0.1)
    started_s = time.perf_counter()
    with pytest.raises(ConfigError, match=message), store_server(tmp_path, 1e9):
        pass
    assert time.perf_counter() - started_s < 30
