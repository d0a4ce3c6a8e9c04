from pathlib import Path

import httpx
import pytest

from punica_serve.bench.hot_reload import footprint
from punica_serve.bench.running_cluster import RunningCluster


@pytest.fixture
def busy_frontend(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The statuses that it answers next with, and 503 after them."""
    statuses: list[int] = []

    def get(url: str, **_: object) -> httpx.Response:
        status = statuses.pop(0) if statuses else 503
        content = {"gpus": [{"resident_adapters": ["a", "b"]}, {"resident_adapters": ["a"]}]}
        return httpx.Response(status, json=content, request=httpx.Request("GET", url))

    monkeypatch.setattr(httpx, "get", get)
    monkeypatch.setattr(footprint, "_POLL_S", 0.0)
    return statuses


def test_a_frontend_that_is_too_busy_is_asked_again(busy_frontend: list[int], tmp_path: Path) -> None:
    busy_frontend += [503, 503, 200]
    assert footprint.footprint_of(RunningCluster("http://frontend", tmp_path, {}), 1).num_on_gpu == 2


@pytest.mark.parametrize("status", [500, 503])
def test_a_frontend_that_fails_or_stays_busy_is_an_error(
    busy_frontend: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setattr(footprint, "_PATIENCE_S", 0.01)
    busy_frontend += [status]
    with pytest.raises(httpx.HTTPStatusError, match=str(status)):
        footprint.footprint_of(RunningCluster("http://frontend", tmp_path, {}), 1)
