"""A browser before the application."""

from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser

from browser import Tab, chromium, tab


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as browser:
        yield browser


@pytest.fixture(name="tab")
async def tab_fixture(browser: Browser) -> AsyncIterator[Tab]:
    async with tab(browser) as new:
        yield new
