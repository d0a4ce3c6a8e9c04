import asyncio
import os
import re
from dataclasses import replace

import pytest
from rich.progress import Progress

from punica_serve.bench.frontend.played_scheduler import PlayedGpu, PlayedScheduler
from punica_serve.bench.frontend.run import run
from punica_serve.bench.frontend.settings import FrontendSettings, StreamApi
from punica_serve.errors import ClusterUnavailable, ConfigError
from punica_serve.protocol import Ending
from waits import DEADLINE_S

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


@pytest.mark.parametrize(
    ("num_gpus", "tokens_per_s", "message"),
    [
        # Eight requests: a token of each takes 3.2 s, in which two GPUs have a turn each.
        (
            2,
            2.5,
            r"for 1\.6 s, and `--seconds` is 0\.5; give `--tokens-per-s` 8 or more, or `--seconds` 1\.6 or more",
        ),
        # Of sixteen GPUs half have no request, and their turns pass without a token.
        (16, 8.0, r"for 0\.562 s, .* give `--tokens-per-s` 9 or more, or `--seconds` 0\.57 or more"),
        (1, 0.3, r"for 26\.7 s, .* give `--tokens-per-s` 16 or more, or `--seconds` 26\.67 or more"),
    ],
)
def test_a_rate_too_low_for_a_token_in_the_measured_time_is_refused(
    num_gpus: int, tokens_per_s: float, message: str
) -> None:
    with pytest.raises(ConfigError, match=f"^`--tokens-per-s` {tokens_per_s:g} may bring no token {message}") as raised:
        replace(SETTINGS, num_gpus=num_gpus, tokens_per_s=tokens_per_s)
    least_rate, least_s = map(float, re.findall(r"` ([0-9.]+) or more", raised.value.message))
    replace(SETTINGS, num_gpus=num_gpus, tokens_per_s=least_rate)
    replace(SETTINGS, num_gpus=num_gpus, tokens_per_s=tokens_per_s, seconds=least_s)


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
def test_a_run_in_which_no_token_is_sent_has_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never_step(scheduler: PlayedScheduler, step_s: float) -> None:
        await asyncio.sleep(DEADLINE_S)

    monkeypatch.setattr(PlayedScheduler, "keep_stepping", never_step)
    with pytest.raises(
        ClusterUnavailable, match=r"no token was sent in \d+\.\d s: the frontend or its clients stopped"
    ):
        run(SETTINGS, Progress())
