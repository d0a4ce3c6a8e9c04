"""The heat map, what is under the cursor, and the GPU that a click opens."""

import json
from typing import Any

import pytest
from msgspec.structs import replace
from playwright.async_api import Browser

from browser import Tab, tab
from echo_cluster import EchoCluster
from punica_serve.protocol import Mark, PlacedRequest
from waits import until
from wide_cluster import S, WideCluster

pytestmark = pytest.mark.slow


@pytest.fixture
def url(address: str) -> str:
    return f"http://{address}/dashboard"


class Sixteen(WideCluster):
    """16 GPUs; the first is the busiest."""

    num_gpus, num_adapters, num_samples = 16, 4, 100

    def batch_size(self, gpu: int) -> int:
        return 32 - 2 * gpu


class TestWide:
    @pytest.fixture
    def cluster(self) -> Sixteen:
        return Sixteen()

    async def test_gpus_are_above_the_fold_busiest_first_or_by_host(self, tab: Tab, url: str) -> None:
        await tab.open(url)
        await tab.waits_until("document.querySelectorAll('.heat-label').length === 16")
        box = await tab.page.locator(".heat-plot").bounding_box()
        assert box is not None and box["y"] + box["height"] < 900
        names = [f"host-{gpu // 8}/{gpu % 8}" for gpu in range(16)]
        await tab.page.select_option("#batch-order", "host")
        assert await tab.page.locator(".heat-label").all_inner_texts() == names

    async def test_cells_are_darker_the_fuller_the_batch(self, tab: Tab, url: str, cluster: Sixteen) -> None:
        await tab.open(url)
        await tab.page.select_option("#batch-order", "host")
        await tab.waits_until("document.querySelectorAll('.heat-label').length === 16")
        await until(lambda: cluster.num_looks > 8)
        light = [await lightness(tab, row) for row in (0, 5, 10, 15)]
        assert light == sorted(light) and light[0] < light[-1] - 50

    async def test_the_cursor_tells_a_gpus_second_and_its_events(
        self, tab: Tab, url: str, cluster: Sixteen, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        marked_ns = cluster.now_ns
        told = type(cluster).cluster

        async def with_marks(self: Sixteen) -> Any:
            marks = (Mark(1, marked_ns, "migrated", (self.uuid(2), self.uuid(3)), 13),)
            return replace(await told(self), marks=marks)

        monkeypatch.setattr(type(cluster), "cluster", with_marks)
        await tab.open(url)
        await tab.page.select_option("#batch-order", "host")
        await tab.waits_until("document.querySelectorAll('.heat-label').length === 16")
        await tab.page.click("#pause")
        seen_s = cluster.now_ns / S
        box = await tab.page.locator(".heat-plot").bounding_box()
        assert box is not None
        row_px = (box["height"] - 24) / 16
        x = box["x"] + box["width"] * (1 - (seen_s - marked_ns / S) / 120)
        await tab.page.mouse.move(x, box["y"] + 2.5 * row_px)
        await tab.waits_until("document.querySelector('#batch-readout').textContent.includes('13 requests moved')")
        text = await tab.text("#batch-readout")
        assert "host-0/2" in text and "host-0/3" in text
        await tab.page.mouse.move(x, box["y"] + 9.5 * row_px)
        await tab.waits_until("document.querySelector('#batch-readout').textContent.includes('host-1/1')")
        assert "moved" not in await tab.text("#batch-readout")
        await tab.page.mouse.move(box["x"] + box["width"] - 30, box["y"] + 2.5 * row_px)
        await tab.waits_until("document.querySelector('#batch-readout').textContent.includes('of 32')")
        assert not tab.own_errors

    async def test_each_canvas_has_a_text_and_stacked_shows_the_capacity(self, tab: Tab, url: str) -> None:
        await tab.open(url)
        pictures = "[...document.querySelectorAll('[role=img]')].filter(one => one.checkVisibility())"
        await tab.waits_until(f"{pictures}.length === 7 && {pictures}.every(one => one.ariaLabel)")
        assert "16 GPUs" in (await tab.page.get_attribute(".heat-cells", "aria-label") or "")
        await tab.page.select_option("#batch-look", "stacked")
        await tab.waits_until("document.querySelectorAll('#legend li').length === 16")
        assert await tab.page.locator("#heat").is_hidden()
        assert not tab.own_errors


async def lightness(tab: Tab, row: int) -> int:
    """Of the newest cell of a row of the heat map."""
    script = """row => {
        const canvas = document.querySelector('.heat-cells');
        const labels = document.querySelectorAll('.heat-label');
        const box = labels[row].getBoundingClientRect(), own = canvas.getBoundingClientRect();
        const y = (box.top + box.height / 2 - own.top) * devicePixelRatio;
        const [r, g, b] = canvas.getContext('2d').getImageData(canvas.width - 6, y, 1, 1).data;
        return Math.round(0.2126 * r + 0.7152 * g + 0.0722 * b);
    }"""
    return int(await tab.page.evaluate(script, row))


async def test_a_short_request_is_seen_after_its_end(tab: Tab, url: str, cluster: EchoCluster) -> None:
    """The newest step is long over, but the second is not."""
    cluster.now_ns = 1_800_000_000 * S
    cluster.batch_size_mean, cluster.batch_size_max = 1.0, 1
    await tab.open(url)
    await tab.shows({"CPU-1": 1})
    busy = await lightness(tab, 0)
    cluster.batch_size_mean, cluster.batch_size_max = 0.0, 0
    cluster.now_ns += 2 * S
    await tab.shows({"CPU-1": 0})
    assert await lightness(tab, 0) > busy + 40  # one request does not look like none


async def test_a_click_opens_a_gpu_and_escape_closes_it(tab: Tab, url: str, cluster: EchoCluster) -> None:
    cluster.placed = [PlacedRequest("request-1", "default", "default", "d1", 3, 5, 64, 0)]
    await tab.open(url)
    await tab.waits_until("document.querySelectorAll('.heat-label').length === 1")
    await tab.page.focus(".heat-label")
    await tab.page.keyboard.press("Enter")
    await tab.waits_until("document.querySelector('#gpu-body').textContent.includes('request-1')")
    text = await tab.text("#gpu-panel")
    for word in ("host/0", "CPU-1", "roman", "shared", "3 + 5 / 64", "3 / 8", "10 / 100 pages"):
        assert word in text, word
    await tab.page.keyboard.press("Escape")
    assert await tab.page.locator("#gpu-panel").is_hidden()
    assert await tab.page.evaluate("document.activeElement.className") == "heat-label"
    await tab.page.click(".heat-plot", position={"x": 200, "y": 10})
    await tab.waits_until("document.querySelector('#gpu-title').textContent === 'host/0'")
    assert not tab.own_errors


@pytest.mark.parametrize(
    ("kind", "ticks", "increment", "labels"),
    [
        ("percent", [0, 0.075, 0.15], 0.075, ["0", "7.5 %", "15.0 %"]),
        ("percent", [0, 0.25, 0.5], 0.25, ["0", "25 %", "50 %"]),
        ("duration", [0, 0.0125, 0.025], 0.0125, ["0", "12.5 ms", "25.0 ms"]),
        ("duration", [0, 0.5, 1.0], 0.5, ["0", "0.5 s", "1.0 s"]),
        ("number", [0, 12_250, 24_500], 12_250, ["0", "12.25 k", "24.50 k"]),
        ("number", [0, 2.5, 5], 2.5, ["0", "2.5", "5.0"]),
    ],
)
async def test_ticks_say_what_they_are(
    tab: Tab, url: str, kind: str, ticks: list[float], increment: float, labels: list[str]
) -> None:
    await tab.open(url)
    call = f"{kind}Ticks({json.dumps(ticks)}, {increment})"
    assert await tab.page.evaluate(f"import('/dashboard/ticks.js').then(ticks => ticks.{call})") == labels


async def test_no_text_is_smaller_than_13_px(tab: Tab, url: str) -> None:
    await tab.open(url)
    await tab.waits_until("document.querySelectorAll('#gpus article').length === 1")
    sizes = """[...document.querySelectorAll('body *')]
        .filter(one => one.checkVisibility())
        .filter(one => [...one.childNodes].some(child => child.nodeType === 3 && child.data.trim()))
        .map(one => [parseFloat(getComputedStyle(one).fontSize), one.outerHTML.slice(0, 80)])
        .filter(([size]) => size < 13)"""
    assert await tab.page.evaluate(sizes) == []


async def test_a_wide_screen_is_used(browser: Browser, url: str) -> None:
    async with tab(browser, viewport={"width": 1920, "height": 1080}) as page:
        await page.open(url)
        await page.waits_until("document.querySelectorAll('.heat-label').length === 1")
        right = await page.page.evaluate("document.querySelector('.traffic').getBoundingClientRect().right")
        assert right > 1860
        assert not page.own_errors
