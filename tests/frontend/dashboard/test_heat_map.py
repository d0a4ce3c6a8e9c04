"""The heat map, what is under the cursor, and the GPU that a click opens."""

import json
from typing import Any

import pytest
from msgspec.structs import replace
from playwright.async_api import Browser

from browser import Tab, tab
from echo_cluster import EchoCluster
from punica_serve.errors import GpuNotFound
from punica_serve.protocol import GpuDetails, Mark, PlacedRequest
from waits import until
from wide_cluster import S, WideCluster

pytestmark = pytest.mark.slow


@pytest.fixture
def url(address: str) -> str:
    return f"http://{address}/dashboard"


class Sixteen(WideCluster):
    """16 GPUs, the last of them the busiest, and a clock that stands still: all that a test sees is settled."""

    num_gpus, num_adapters, num_samples, look_ns = 16, 4, 100, 0

    def batch_size(self, gpu: int) -> int:
        return 2 + 2 * gpu

    def past_batch_size(self, gpu: int, sample: int) -> int:
        return self.batch_size(gpu)


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
        assert await tab.page.locator(".heat-label").all_inner_texts() == names[::-1]
        await tab.page.select_option("#batch-order", "host")
        assert await tab.page.locator(".heat-label").all_inner_texts() == names

    async def test_cells_are_darker_the_fuller_the_batch(self, tab: Tab, url: str) -> None:
        await tab.open(url)
        await tab.waits_until("document.querySelectorAll('.heat-label').length === 16")
        light = [await lightness(tab, row) for row in (0, 5, 10, 15)]
        assert light == sorted(light) and light[0] < light[-1] - 50

    async def test_the_cursor_tells_a_gpus_second_and_its_events(
        self, tab: Tab, url: str, cluster: Sixteen, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ago_s = 20
        told = type(cluster).cluster

        async def with_marks(self: Sixteen) -> Any:
            marks = (Mark(1, cluster.now_ns - ago_s * S, "migrated", (self.uuid(2), self.uuid(3)), 13),)
            return replace(await told(self), marks=marks)

        monkeypatch.setattr(type(cluster), "cluster", with_marks)
        await tab.open(url)
        await tab.page.select_option("#batch-order", "host")
        await tab.waits_until("document.querySelectorAll('.heat-label').length === 16")
        box = await tab.page.locator(".heat-plot").bounding_box()
        assert box is not None
        row_px = (box["height"] - 24) / 16
        x = box["x"] + box["width"] * (1 - ago_s / 120)
        await tab.page.mouse.move(x, box["y"] + 2.5 * row_px)
        await tab.waits_until("document.querySelector('#batch-readout').textContent.includes('13 requests moved')")
        text = await tab.text("#batch-readout")
        assert "host-0/2" in text and "host-0/3" in text
        await tab.page.mouse.move(x, box["y"] + 9.5 * row_px)
        await tab.waits_until("document.querySelector('#batch-readout').textContent.includes('host-1/1')")
        assert "moved" not in await tab.text("#batch-readout")
        await tab.page.mouse.move(box["x"] + box["width"] - 30, box["y"] + 2.5 * row_px)
        readout = "document.querySelector('#batch-readout').textContent"
        await tab.waits_until(f"{readout}.includes('host-0/2 · mean 6, most 6 of 32')")
        # It stays while the pointer rests, however often the page is drawn.
        await tab.page.evaluate("document.querySelector('#batch-order').dispatchEvent(new Event('change'))")
        num_looks = cluster.num_looks
        await until(lambda: cluster.num_looks > num_looks + 2)
        assert "host-0/2" in await tab.text("#batch-readout")
        await tab.page.mouse.move(0, 0)
        await tab.waits_until(f"{readout}.startsWith('16 GPUs')")
        assert not tab.own_errors

    async def test_a_gpu_that_is_gone_does_not_show_anothers_figures(
        self, tab: Tab, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        told = Sixteen.gpu

        async def without_the_first(self: Sixteen, gpu: str) -> GpuDetails:
            if gpu == self.uuid(0):
                raise GpuNotFound("it is gone")
            return await told(self, gpu)

        monkeypatch.setattr(Sixteen, "gpu", without_the_first)
        await tab.open(url)
        await tab.page.select_option("#batch-order", "host")
        await tab.waits_until("document.querySelectorAll('.heat-label').length === 16")
        await tab.page.locator(".heat-label").nth(1).click()
        await tab.waits_until("document.querySelector('#gpu-body').innerText.includes('10 / 100 pages')")
        await tab.page.locator(".heat-label").nth(0).click()
        await tab.waits_until("document.querySelector('#gpu-body').innerText.includes('it is gone')")
        assert "100 pages" not in await tab.text("#gpu-body")

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
    """The lightness of the newest cell of a row of the heat map."""
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


@pytest.mark.parametrize(
    ("seconds", "cells"),
    [
        ([10, 11, 12], "xxx"),
        ([10, 12], "xxx"),  # a second that no row has: rows come about once a second
        ([10, 13], "xxxx"),
        ([10, None, 14], "x...x"),  # a gap
        ([12, 13], "xx"),
    ],
)
async def test_a_row_stands_for_the_seconds_since_the_one_before(
    tab: Tab, url: str, seconds: list[int | None], cells: str
) -> None:
    rows = [{"at": at, "uuids": ["A"], "batch": [3]} if at else {"at": 11, "uuids": [], "batch": []} for at in seconds]
    call = f"""import('/dashboard/heat_rows.js').then(({{ cellsOf, rowOf }}) => {{
        const rows = {json.dumps(rows)};
        const cells = [...cellsOf(rows, ["A"], {seconds[0]}, {len(cells)}, () => 0)].map(cell => cell ? "x" : ".");
        const told = cells.map((_, column) => rowOf(rows, {seconds[0]} + column)?.uuids.length ? "x" : ".");
        return [cells.join(""), told.join("")];
    }})"""
    await tab.open(url)
    assert await tab.page.evaluate(call) == [cells, cells]


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
