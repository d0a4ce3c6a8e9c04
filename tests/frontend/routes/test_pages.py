"""The pages for browsers, as far as no browser is needed to see it."""

import re
from typing import Any

import httpx
import pytest

from punica_frontend.dashboard.pages import Page, api_page, dashboard_page
from punica_frontend.openapi_page import Api

PAGES = {page.path: page for page in (dashboard_page(), api_page())}


@pytest.fixture(params=PAGES)
def page(request: pytest.FixtureRequest) -> Page:
    return PAGES[request.param]


def test_all_that_a_page_asks_for_is_there(page: Page) -> None:
    ours = (asset.content.decode() for name, asset in page.files.items() if name.endswith((".html", ".js")))
    asked = {path for text in ours for path in re.findall(r'(?:src|href)="(/\w+/[^"]+)"', text)}
    assert asked and asked <= PAGES["/dashboard"].paths | PAGES["/docs"].paths
    modules = {
        name: set(re.findall(r' from "\./([^"]+)"', asset.content.decode()))
        for name, asset in page.files.items()
        if name.endswith(".js")
    }
    assert set().union(*modules.values()) <= modules.keys()


async def test_its_files_and_its_policy(client: httpx.AsyncClient, page: Page) -> None:
    for path in sorted(page.paths):
        answer = await client.get(path)
        assert answer.status_code == 200 and answer.headers["x-content-type-options"] == "nosniff"
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self';" in policy and "http" not in policy
    assert "<script>" not in page.index.content.decode()
    assert (await client.get(f"{page.path}/start.css")).status_code == 404


async def test_a_browser_that_has_a_file_is_not_sent_it_again(client: httpx.AsyncClient, page: Page) -> None:
    etag = (await client.get(page.path)).headers["etag"]
    again = await client.get(page.path, headers={"if-none-match": etag})
    assert (again.status_code, again.content) == (304, b"")
    assert (await client.get(page.path, headers={"if-none-match": '"another"'})).status_code == 200


async def test_the_bare_address_leads_a_browser_to_the_dashboard(client: httpx.AsyncClient) -> None:
    answer = await client.get("/")
    assert (answer.status_code, answer.headers["location"]) == (307, "/dashboard")
    assert (await client.get("/", follow_redirects=True)).headers["content-type"].startswith("text/html")


class TestKeys:
    @pytest.fixture
    def lock(self) -> str:
        return "keys"

    async def test_the_dashboard_is_there_to_log_in_and_all_else_is_closed(
        self, app: Api, client: httpx.AsyncClient, registry: Any
    ) -> None:
        await registry.make_key("default", "admin", "", None, by="the test")
        statuses = {path: (await client.get(path)).status_code for path in PAGES["/dashboard"].paths}
        assert set(statuses.values()) == {200}
        assert (await client.get("/")).headers["location"] == "/dashboard"
        assert (await client.post("/", json={"inputs": "42"})).status_code == 401
        paths = app.openapi()["paths"]
        assert "security" not in paths["/"]["get"] and "security" in paths["/"]["post"]
        for path in ("/docs", "/openapi.json", "/v1/cluster"):
            assert (await client.get(path)).status_code == 401
