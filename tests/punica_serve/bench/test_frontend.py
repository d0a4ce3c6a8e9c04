import os
from dataclasses import replace

import pytest
from rich.progress import Progress

from punica_serve.bench.frontend.run import run
from punica_serve.bench.frontend.settings import FrontendSettings, StreamApi
from punica_serve.errors import ConfigError

SETTINGS = FrontendSettings(
    "websocket", num_sockets=4, requests_per_socket=2, num_gpus=2, tokens_per_s=4_000.0, seconds=0.5
)


def test_a_load_that_would_be_over_before_its_end_is_refused() -> None:
    assert (SETTINGS.num_requests, SETTINGS.step_s) == (8, 0.002)
    with pytest.raises(ConfigError, match="shorter time, or with more requests"):
        replace(SETTINGS, seconds=60.0)


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="only Linux tells of processes")
@pytest.mark.parametrize(("api", "num_connections"), [("websocket", 4), ("http", 8)])
def test_a_small_load_is_measured(api: StreamApi, num_connections: int) -> None:
    report = run(replace(SETTINGS, api=api), Progress())
    (row,) = report.tables[0].records
    assert (row.pop("api"), row["num_connections"], row["num_requests"]) == (api, num_connections, 8)
    assert all(isinstance(value, int | float) and value > 0 for value in row.values())
