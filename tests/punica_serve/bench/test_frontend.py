import os
from dataclasses import replace

import pytest
from rich.progress import Progress

from punica_serve.bench.frontend.played_scheduler import PlayedGpu
from punica_serve.bench.frontend.run import run
from punica_serve.bench.frontend.settings import FrontendSettings, StreamApi
from punica_serve.errors import ClusterUnavailable
from punica_serve.protocol import Ending

SETTINGS = FrontendSettings(
    "websocket",
    num_sockets=4,
    requests_per_socket=2,
    num_gpus=2,
    tokens_per_s=4_000.0,
    seconds=0.5,
    prompt_tokens=3,
    answer_tokens=5,
)


def test_a_step_has_a_token_for_each_request() -> None:
    assert (SETTINGS.num_requests, SETTINGS.step_s) == (8, 0.002)


def test_a_played_gpu_ends_a_request_with_its_last_token() -> None:
    gpu = PlayedGpu()
    gpu.add(7, num_tokens=2)
    gpu.add(8, num_tokens=1)
    first, second = gpu.step(), gpu.step()
    assert (first.handles, first.positions, first.endings) == ((7, 8), (0, 0), (Ending(8, 1, "length"),))
    assert (second.handles, second.positions, second.endings) == ((7,), (1,), (Ending(7, 2, "length"),))
    assert not gpu


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="only Linux tells of processes")
@pytest.mark.parametrize(
    ("api", "num_connections", "num_adapters"),
    [("websocket", 4, 3), ("http", 8, 3), ("http", 8, 0), ("chat", 8, 3), ("generate", 8, 3)],
)
def test_a_small_load_is_measured(api: StreamApi, num_connections: int, num_adapters: int) -> None:
    report = run(replace(SETTINGS, api=api, num_adapters=num_adapters), Progress())
    (row,) = report.tables[0].records
    assert (row.pop("api"), row["num_connections"], row["num_requests"]) == (api, num_connections, 8)
    assert row.pop("num_adapters") == num_adapters
    assert all(isinstance(value, int | float) and value > 0 for value in row.values())


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="only Linux tells of processes")
def test_a_load_without_tokens_is_refused() -> None:
    """Its next step is minutes away."""
    with pytest.raises(ClusterUnavailable, match=r"no token was sent in \d+\.\d s"):
        run(replace(SETTINGS, tokens_per_s=0.01), Progress())
