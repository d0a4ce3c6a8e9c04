"""The system's Chromium, driven by Playwright."""

import contextlib
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from playwright.async_api import Browser, Error, Page, async_playwright

from waits import until

CHROMIUM = "/usr/bin/chromium"
_ARGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)
TIMEOUT_MS = 60_000
#: An error of the machine's networks, not of the page: a container was started or stopped.
_NOT_OURS = "ERR_NETWORK_CHANGED"


@contextlib.asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """Skips the test where there is none."""
    if shutil.which(CHROMIUM) is None:
        pytest.skip(f"needs Debian's chromium at {CHROMIUM}")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=_ARGS.split())
        yield browser
        await browser.close()


@dataclass
class Tab:
    """A page, and what went wrong in it."""

    page: Page
    errors: list[str] = field(default_factory=list)
    #: URLs of all that it loaded.
    urls: list[str] = field(default_factory=list)

    async def open(self, url: str, state: str = "live") -> None:
        """Opens the dashboard and waits for the state of its link."""
        for _ in range(5):
            self.errors.clear()
            await self.page.goto(url)
            with contextlib.suppress(Error):
                await self.is_in(state, timeout_ms=TIMEOUT_MS if not self._was_disturbed else 1_000)
                return
            assert self._was_disturbed, self.errors
        raise AssertionError(self.errors)

    @property
    def _was_disturbed(self) -> bool:
        return any(_NOT_OURS in error for error in self.errors)

    @property
    def own_errors(self) -> list[str]:
        return [error for error in self.errors if _NOT_OURS not in error]

    async def is_in(self, state: str, timeout_ms: int = TIMEOUT_MS) -> None:
        await self.page.wait_for_selector(f'#state[data-state="{state}"]', timeout=timeout_ms)

    async def text(self, selector: str) -> str:
        return await self.page.locator(selector).inner_text()

    async def batch_sizes(self) -> dict[str, int]:
        """The largest batch of each GPU's last second, by UUID: from the table that says what the heat map draws."""
        entries = await self.page.eval_on_selector_all(
            "#batch-table tr", "all => all.map(one => [one.dataset.gpu, one.lastElementChild.textContent])"
        )
        return {uuid: int(text) for uuid, text in entries}

    async def shows(self, batch_sizes: dict[str, int]) -> None:
        """Waits until the heat map's table says these."""

        async def is_so() -> bool:
            return await self.batch_sizes() == batch_sizes

        await until(is_so, f"the table says {batch_sizes}", deadline_s=TIMEOUT_MS / 1e3)

    async def waits_until(self, script: str) -> None:
        """Until the expression is true of the page."""
        # Playwright's own way evaluates text in the page, which the page's policy forbids.
        await until(lambda: self.page.evaluate(script), script, deadline_s=TIMEOUT_MS / 1e3)


@contextlib.asynccontextmanager
async def tab(browser: Browser, **context: Any) -> AsyncIterator[Tab]:
    """A page of a new profile."""
    profile = await browser.new_context(**{"viewport": {"width": 1360, "height": 900}, **context})
    page = await profile.new_page()
    page.set_default_timeout(TIMEOUT_MS)
    new = Tab(page)
    page.on("console", lambda message: new.errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: new.errors.append(f"{error.message}\n{error.stack}"))
    page.on("requestfailed", lambda request: new.errors.append(f"{request.url}: {request.failure}"))
    page.on("request", lambda request: new.urls.append(request.url))
    try:
        yield new
    finally:
        await profile.close()
