"""A browser, and a page in it, for the tests of pages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.async_api import Browser

    from browser import Tab


@pytest.fixture(scope="module")
async def browser() -> AsyncIterator[Browser]:
    """Shared by the tests of a file, whose tabs have a profile each."""
    from browser import chromium  # Playwright is for those who use it

    async with chromium() as browser:
        yield browser


@pytest.fixture
async def tab(browser: Browser) -> AsyncIterator[Tab]:
    from browser import tab

    async with tab(browser) as new:
        yield new
