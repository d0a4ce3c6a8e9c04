"""The dashboard before a whole cluster: what it shows is so."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
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
        told = {gpu["gpu"]["uuid"]: gpu["batch_size_max"] for gpu in gpus}
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
    await tab.waits_until("document.querySelectorAll('#batch-table tr').length === 2")


@dataclass
class Ramp:
    cluster: UpCluster
    load: subprocess.Popen[bytes]


@pytest.fixture
def ramp(tmp_path: Path, start: Start) -> Iterator[Ramp]:
    """Sixteen simulated GPUs under a minute's rise and fall of the load: figure 13 of the Punica paper."""
    document = yaml.safe_load(LIVE_CONFIG.read_text())
    document["simulation"]["arrivals"]["rate"] = [[0, 2], [25, 48], [50, 2]]
    config = tmp_path / "ramp.yaml"
    config.write_text(yaml.safe_dump(document))
    with start(tmp_path, str(config)) as cluster:
        command = [sys.executable, "-P", "-m", "punica_serve.cli", "simulate", str(config), "--live", cluster.url]
        with subprocess.Popen([*command, "--out", str(tmp_path / "out")], stdout=subprocess.DEVNULL) as load:
            yield Ramp(cluster, load)
            load.kill()


#: For each row of the heat map, top to bottom: the seconds in which its GPU ran a step, counted from the left.
_BUSY_SECONDS = """() => {
    const canvas = document.querySelector('.heat-cells');
    const context = canvas.getContext('2d');
    const labels = [...document.querySelectorAll('.heat-label')];
    const top = canvas.getBoundingClientRect().top;
    const second = canvas.width / Number(document.querySelector('#range').value);
    const isBusy = ([r, g, b, a]) => a === 255 && Math.max(r, g, b) - Math.min(r, g, b) > 12;
    return labels.map(label => {
        const box = label.getBoundingClientRect();
        const y = (box.top + box.height / 2 - top) * devicePixelRatio;
        const line = context.getImageData(0, y, canvas.width, 1).data;
        const pixel = at => [...line.slice(4 * Math.floor(at), 4 * Math.floor(at) + 4)];
        return [...Array(Math.floor(canvas.width / second)).keys()].filter(at => isBusy(pixel((at + 0.5) * second)));
    });
}"""


@pytest.mark.alone
@pytest.mark.timeout(400)
async def test_a_ramp_of_load_draws_the_triangle_of_figure_13(tab: Tab, ramp: Ramp) -> None:
    await tab.open(f"{ramp.cluster.url}/dashboard")
    await tab.page.select_option("#range", "300")  # far more than the load takes, on a slow machine too
    await tab.waits_until("document.querySelectorAll('.heat-label').length === 16")
    most_busy = 0
    while ramp.load.poll() is None:
        gpus = (await asyncio.to_thread(ramp.cluster.snapshot))["gpus"]
        most_busy = max(most_busy, sum(gpu["batch_size_max"] > 0 for gpu in gpus))
        await asyncio.sleep(0.5)
    assert ramp.load.returncode == 0 and most_busy >= 4
    await until(tab_is_idle(tab))
    busy = [set(row) for row in await tab.page.evaluate(_BUSY_SECONDS) if row]
    assert len(busy) >= most_busy
    lengths = [len(row) for row in busy]
    assert lengths[0] > 2 * lengths[most_busy - 1], lengths
    counts = [sum(second in row for row in busy) for second in range(min(map(min, busy)), max(map(max, busy)) + 1)]
    top = counts.index(max(counts))
    rise = [fmean(counts[top * part // 3 : top * (part + 1) // 3]) for part in range(3)]
    assert rise == sorted(rise) and counts[-1] <= max(counts) // 2 + 1, counts
    assert not tab.own_errors


@pytest.mark.alone
@pytest.mark.skipif(SCREENSHOTS_ENV not in os.environ, reason="takes two minutes; `make screenshots` runs it")
@pytest.mark.timeout(400)  # the rise of the load alone takes half a minute
async def test_screenshots(browser: Browser, ramp: Ramp) -> None:
    """Shows a cluster that loses a GPU under load."""
    cluster = ramp.cluster
    folder = Path(os.environ[SCREENSHOTS_ENV])
    desktop = {"viewport": {"width": 1360, "height": 1000}}
    phone = {"viewport": {"width": 400, "height": 900}, "device_scale_factor": 2, "has_touch": True}
    looks: dict[str, dict[str, Any]] = {
        "light": {**desktop, "color_scheme": "light"},
        "dark": {**desktop, "color_scheme": "dark"},
        "phone": {**phone, "color_scheme": "light"},
        "gpu": {"viewport": {"width": 1920, "height": 1080}, "color_scheme": "light"},
    }
    await until(lambda: cluster.counters()["tokens"] > 30_000, deadline_s=120)
    os.kill(cluster.processes("punica_runner.worker")[-1], signal.SIGKILL)
    for name, look in looks.items():
        async with tab(browser, **look) as page:
            await page.open(f"{cluster.url}/dashboard")
            await page.waits_until("document.querySelector('#events').textContent.includes('lost')")
            await page.page.select_option("#range", "60")
            if name == "gpu":
                await page.page.locator(".heat-label").first.click()
                await page.waits_until("document.querySelector('#gpu-body tbody tr')")
            await page.page.wait_for_timeout(1_500)
            await page.is_in("live")
            await page.page.screenshot(path=folder / f"{name}.png")
            assert not page.own_errors
