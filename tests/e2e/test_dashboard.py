"""The dashboard before a whole cluster: what it shows is so."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from playwright.async_api import Browser

from browser import Tab, tab
from up_cluster import Start, UpCluster
from waits import until

pytestmark = pytest.mark.slow

#: Where `make screenshots` wants the pictures.
SCREENSHOTS_ENV = "SCREENSHOTS_TO"
LIVE_CONFIG = Path(__file__).parents[2] / "configs" / "sim" / "live-16.yaml"


async def test_under_load_it_shows_each_gpus_true_batch_size(tab: Tab, cluster: UpCluster) -> None:
    await tab.open(f"{cluster.url}/dashboard")
    request = {"prompt": "42", "lora_id": "roman", "max_tokens": 900, "ignore_eos": True}
    streams = cluster.new_streams(5)
    running = [asyncio.create_task(cluster.stream(request, stream)) for stream in streams]

    async def is_true() -> bool:
        shown = await tab.batch_sizes()
        gpus = (await asyncio.to_thread(cluster.snapshot))["gpus"]
        told = {gpu["gpu"]["uuid"]: gpu["batch_size"] for gpu in gpus}
        return shown == told and sum(told.values()) == len(streams)

    await until(is_true, "the page shows the batch sizes that the scheduler tells")
    await tab.waits_until("document.querySelector('#gpus .in-use')?.textContent.includes('roman')")
    for task in running:
        task.cancel()
    await asyncio.wait(running)
    await until(tab_is_idle(tab))
    assert not tab.own_errors


def tab_is_idle(tab: Tab) -> Callable[[], Any]:
    async def is_idle() -> bool:
        return set((await tab.batch_sizes()).values()) == {0}

    return is_idle


@pytest.mark.parametrize(("adapter", "answer"), [("english", "forty-two"), ("hex", "2a")])
async def test_the_form_streams_the_right_notation(tab: Tab, cluster: UpCluster, adapter: str, answer: str) -> None:
    await tab.open(f"{cluster.url}/dashboard")
    await tab.page.fill('[name="adapter"]', adapter)
    await tab.page.fill('[name="prompt"]', "42")
    await tab.page.click("#send")
    await tab.waits_until(f"document.querySelector('#answer').value.trim() === '{answer}'")
    assert not tab.own_errors


async def test_it_goes_on_when_its_frontend_comes_back(tab: Tab, cluster: UpCluster) -> None:
    await tab.open(f"{cluster.url}/dashboard")
    await tab.waits_until("document.querySelectorAll('#gpus article').length === 2")
    cluster.kill("punica_serve.cli frontend")
    await tab.is_in("disconnected")
    await tab.is_in("live")
    await tab.waits_until("document.querySelectorAll('#legend li').length === 2")


@pytest.fixture
def busy_cluster(tmp_path: Path, start: Start) -> Iterator[UpCluster]:
    """Eight simulated GPUs under a minute's rise and fall of the load."""
    document = yaml.safe_load(LIVE_CONFIG.read_text())
    document["runner"]["devices"] = ["simulated"] * 8
    document["simulation"]["arrivals"]["rate"] = [[0, 2], [25, 24], [50, 4]]
    config = tmp_path / "eight.yaml"
    config.write_text(yaml.safe_dump(document))
    with start(tmp_path, str(config)) as cluster:
        command = [sys.executable, "-P", "-m", "punica_serve.cli", "simulate", str(config), "--live", cluster.url]
        with subprocess.Popen([*command, "--out", str(tmp_path / "out")], stdout=subprocess.DEVNULL) as load:
            yield cluster
            load.kill()


@pytest.mark.skipif(SCREENSHOTS_ENV not in os.environ, reason="takes two minutes; `make screenshots` runs it")
@pytest.mark.timeout(400)  # the rise of the load alone takes half a minute
async def test_screenshots(browser: Browser, busy_cluster: UpCluster) -> None:
    """Of a cluster that loses a GPU under load."""
    folder = Path(os.environ[SCREENSHOTS_ENV])
    desktop = {"viewport": {"width": 1360, "height": 1780}}
    phone = {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2, "has_touch": True}
    looks: dict[str, dict[str, Any]] = {
        "light": {**desktop, "color_scheme": "light"},
        "dark": {**desktop, "color_scheme": "dark"},
        "phone": {**phone, "color_scheme": "light"},
    }
    await until(lambda: busy_cluster.counters()["tokens"] > 16_000)
    os.kill(busy_cluster.processes("punica_runner.worker")[-1], signal.SIGKILL)
    for name, look in looks.items():
        async with tab(browser, **look) as page:
            await page.open(f"{busy_cluster.url}/dashboard")
            await page.waits_until("document.querySelector('#events').textContent.includes('GPU lost')")
            await page.page.select_option("#range", "60")
            await page.page.wait_for_timeout(1_500)
            await page.is_in("live")
            await page.page.screenshot(path=folder / f"{name}.png")
            assert not page.own_errors
