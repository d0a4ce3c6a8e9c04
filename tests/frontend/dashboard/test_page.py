"""The dashboard in a browser, on a cluster in memory."""

from urllib.parse import urlsplit

import pytest
from playwright.async_api import Browser

from browser import Tab, tab
from echo_cluster import EchoCluster
from punica_serve.protocol import AdapterRef, Mark, PromiseCounts
from punica_serve.registry.registry import Registry
from waits import until

pytestmark = pytest.mark.slow


@pytest.fixture
def url(address: str) -> str:
    return f"http://{address}/dashboard"


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_it_is_live_and_loads_nothing_from_elsewhere(
    browser: Browser, url: str, address: str, scheme: str
) -> None:
    async with tab(browser, color_scheme=scheme) as page:
        await page.open(url)
        await page.waits_until("document.querySelectorAll('#gpus article').length === 1")
        await page.shows({"CPU-1": 1})
        for word in ("roman", "r8"):
            await page.waits_until(f"document.querySelector('#gpus').textContent.includes('{word}')")
        await page.waits_until("document.querySelectorAll('.plot canvas').length === 6")
        assert {urlsplit(loaded).netloc for loaded in page.urls} == {address}
        assert not page.own_errors


async def test_promises_are_shown_once_any_was_judged(tab: Tab, url: str, cluster: EchoCluster) -> None:
    await tab.open(url)
    await tab.waits_until("document.querySelector('#tiles').textContent.includes('KvCache')")
    assert "kept" not in await tab.text("#tiles")
    cluster.promises = PromiseCounts(first_token_kept=2_999, first_token_broken=1)
    cluster.now_ns += 1_000_000_000
    await tab.waits_until("document.querySelector('#tiles').textContent.includes('First token kept99.9 %')")
    tiles = await tab.text("#tiles")
    assert "2999 kept, 1 broken" in tiles and "Time per token" not in tiles


async def test_cached_pages_are_shown_where_gpus_share_them(tab: Tab, url: str, cluster: EchoCluster) -> None:
    await tab.open(url)
    await tab.waits_until("document.querySelector('#tiles').textContent.includes('KvCache')")
    assert "ached" not in await tab.text("#tiles")
    cluster.prefix_tokens = (1_000, 640)
    await tab.open(url)
    await tab.waits_until("document.querySelector('#tiles').textContent.includes('Cached pages40')")
    tiles = await tab.text("#tiles")
    assert "Prefix cache hits\n64 %" in tiles and "640 prefill tokens saved" in tiles
    await tab.page.click("#gpus .gpu-name")
    await tab.waits_until("document.querySelector('#gpu-panel').textContent.includes('40 cached')")
    assert not tab.own_errors


async def test_a_profile_that_is_wrong_is_shown(tab: Tab, url: str, cluster: EchoCluster) -> None:
    cluster.step_time_ratio = 1.2
    await tab.open(url)
    await tab.waits_until("document.querySelector('#gpus').textContent.includes('roman')")
    assert "profile" not in await tab.text("#gpus")
    cluster.step_time_ratio = 1.6
    cluster.now_ns += 1_000_000_000
    wanted = "steps take 1.6 x the profile\\'s"
    await tab.waits_until(f"document.querySelector('#gpus').textContent.includes('{wanted}')")
    await tab.page.click("#gpus .gpu-name")
    await tab.waits_until(f"document.querySelector('#gpu-panel').textContent.includes('{wanted}')")
    assert not tab.own_errors


async def test_at_the_width_of_a_phone_nothing_is_cut_off(browser: Browser, url: str) -> None:
    async with tab(browser, viewport={"width": 360, "height": 740}, has_touch=True) as page:
        await page.open(url)
        await page.waits_until("document.querySelectorAll('#gpus article').length === 1")
        await page.waits_until("document.querySelectorAll('.plot canvas').length === 6")
        await page.waits_until("document.documentElement.scrollWidth === 360")
        assert not page.own_errors


async def test_a_pause_keeps_what_is_shown_and_then_goes_on(tab: Tab, url: str, cluster: EchoCluster) -> None:
    cluster.now_ns = 1_800_000_000_000_000_000
    await tab.open(url)
    await tab.waits_until("document.querySelector('#gpus').textContent.includes('roman')")
    await tab.page.click("#pause")
    await tab.is_in("paused")
    before = await tab.text("#tiles")
    cluster.now_ns += 5_000_000_000
    cluster.resident_adapters = ()
    async with tab.page.expect_event("websocket", predicate=lambda socket: "watch" in socket.url):
        await tab.page.select_option("#rate", "5")  # a new link, so that frames have come for sure
    await tab.is_in("paused")
    assert await tab.text("#tiles") == before and "roman" in await tab.text("#gpus")
    await tab.page.click("#pause")
    await tab.waits_until("!document.querySelector('#gpus').textContent.includes('roman')")
    await tab.is_in("live")
    assert not tab.own_errors


async def test_the_form_tells_adapters_of_one_name_apart(tab: Tab, url: str, registry: Registry) -> None:
    ref = AdapterRef("d2", "/adapters/own", 100, {"q_proj": 8})
    await registry.register("default", "roman", ref, by="the test")
    await tab.open(url)
    await tab.waits_until("document.querySelectorAll('#adapters option').length === 2")
    options = await tab.page.eval_on_selector_all("#adapters option", "all => all.map(one => one.value)")
    assert sorted(options) == ["default/roman", "shared/roman"]


@pytest.mark.parametrize("chart", ['[data-chart="tokens"] .u-over', ".heat-plot"])
async def test_a_stretch_that_is_dragged_over_is_shown_alone(
    tab: Tab, url: str, cluster: EchoCluster, chart: str
) -> None:
    cluster.now_ns = 1_800_000_000_000_000_000
    await tab.open(url)
    # The last drawing moves the chart no more.
    await tab.waits_until("document.querySelectorAll('#gpus article').length === 1")
    box = await tab.page.locator(chart).bounding_box()
    assert box is not None
    await tab.page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 20)
    await tab.page.mouse.down()
    await tab.page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + 20, steps=3)
    await tab.page.mouse.up()
    assert await tab.page.locator("#gpu-panel").is_hidden()
    await tab.page.click("#unzoom")
    await tab.waits_until("document.querySelector('#unzoom').hidden")
    assert not tab.own_errors


async def test_the_form_streams_an_answer_and_tells_of_mistakes(tab: Tab, url: str) -> None:
    await tab.open(url)
    await tab.waits_until("document.querySelector('#adapters option')?.value === 'roman'")
    await tab.page.fill('[name="adapter"]', "roman")
    await tab.page.fill('[name="maxTokens"]', "9")
    await tab.page.fill('[name="prompt"]', "ave")
    await tab.page.click("#send")
    await tab.waits_until("document.querySelector('#answer').value === 'ave'")
    await tab.waits_until("document.querySelector('#answer-figures').textContent.includes('first token after')")
    await tab.page.fill('[name="adapter"]', "latin")
    await tab.page.click("#send")
    await tab.waits_until("document.querySelector('#answer').value.includes('there is no adapter')")
    assert not tab.own_errors


async def test_an_answer_can_be_stopped(tab: Tab, url: str, cluster: EchoCluster) -> None:
    cluster.pause_at = 2
    await tab.open(url)
    await tab.page.fill('[name="maxTokens"]', "9")
    await tab.page.click("#send")
    await tab.waits_until("document.querySelector('#answer').value === '42'")
    await tab.page.click("#stop")
    await until(lambda: len(cluster.cancelled) == 1)
    await tab.waits_until("document.querySelector('#stop').hidden")


async def test_a_request_stopped_while_its_link_opens_is_never_sent(tab: Tab, url: str, cluster: EchoCluster) -> None:
    await tab.open(url)
    await tab.page.fill('[name="maxTokens"]', "9")
    await tab.page.fill('[name="prompt"]', "ave")
    # In one turn of the page, in which no link can have been opened.
    clicks = ", ".join(f"document.querySelector('#{button}').click()" for button in ("send", "stop", "send", "send"))
    await tab.page.evaluate(clicks)
    await tab.waits_until("document.querySelector('#answer').value === 'ave'")
    await tab.waits_until("document.querySelector('#stop').hidden")
    assert len(cluster.requests) == 1 and not tab.own_errors


async def test_it_outlives_the_scheduler(tab: Tab, url: str, cluster: EchoCluster) -> None:
    await tab.open(url)
    cluster.connected = False
    await tab.is_in("no scheduler")
    cluster.connected = True
    await tab.is_in("live")
    assert not tab.own_errors


async def test_a_restart_of_the_scheduler_is_an_event_beside_those_before(
    tab: Tab, url: str, cluster: EchoCluster
) -> None:
    cluster.marks = [Mark(1, cluster.now_ns, "gpu_taken_back", ("CPU-1",), 1)]
    await tab.open(url)
    await tab.waits_until("document.querySelector('#events').textContent.includes('GPU taken back')")
    cluster.incarnation, cluster.marks = 2, [Mark(1, cluster.now_ns, "scheduler_started", (), 1)]
    await tab.waits_until("document.querySelector('#events').textContent.includes('scheduler started')")
    assert "GPU taken back" in await tab.text("#events")
    assert not tab.own_errors


async def test_the_page_about_the_api_needs_no_other_host(tab: Tab, address: str) -> None:
    await tab.page.goto(f"http://{address}/docs")
    await tab.page.wait_for_selector(".opblock-summary-path")
    assert {urlsplit(loaded).netloc for loaded in tab.urls if not loaded.startswith("data:")} == {address}
    assert not tab.own_errors


class TestKeys:
    @pytest.fixture
    def auth_mode(self) -> str:
        return "keys"

    async def test_a_browser_logs_in_and_out(self, tab: Tab, url: str, registry: Registry) -> None:
        _, secret = await registry.make_key("default", "admin", "", None, by="the test")
        await tab.open(url, "login")
        await tab.page.fill('[name="key"]', "pk-wrong-key")
        await tab.page.click("#login .primary")
        await tab.waits_until("document.querySelector('#login-error').textContent.includes('not valid')")
        await tab.page.fill('[name="key"]', secret)
        await tab.page.click("#login .primary")
        await tab.is_in("live")
        await tab.page.fill('[name="maxTokens"]', "9")
        await tab.page.click("#send")
        await tab.waits_until("document.querySelector('#answer').value === '42'")
        await tab.page.click("#logout")
        await tab.is_in("login")
        await tab.waits_until("document.querySelector('#login').open")

    async def test_the_page_about_the_api_has_the_same_login(self, tab: Tab, address: str, registry: Registry) -> None:
        _, secret = await registry.make_key("default", "user", "", None, by="the test")
        await tab.page.goto(f"http://{address}/docs")
        await tab.waits_until("document.querySelector('#login').open")
        await tab.page.fill('[name="key"]', secret)
        await tab.page.click("#login .primary")
        await tab.page.wait_for_selector(".opblock-summary-path")
        await tab.page.click("#logout")
        await tab.waits_until("document.querySelector('#login').open")
