"""The pages for browsers, as far as no browser is needed to see it."""

import re

import httpx
import pytest

from punica_frontend.api_application import Api
from punica_frontend.dashboard.pages import Page, api_page, dashboard_page
from punica_serve.registry.registry import Registry

PAGES = {page.path: page for page in (dashboard_page(), api_page())}


@pytest.fixture(params=PAGES)
def page(request: pytest.FixtureRequest) -> Page:
    return PAGES[request.param]


def test_all_that_a_page_asks_for_is_there(page: Page) -> None:
    ours = [asset.content.decode() for name, asset in page.files.items() if name.endswith((".html", ".js"))]
    asked = {path for text in ours for path in re.findall(r'(?:src|href)="(/\w+/[^"]+)"', text)}
    assert asked and asked <= PAGES["/dashboard"].paths | PAGES["/docs"].paths
    modules = {
        name: set(re.findall(r' from "\./([^"]+)"', asset.content.decode()))
        for name, asset in page.files.items()
        if name.endswith(".js")
    }
    assert set().union(*modules.values()) <= modules.keys()
    imported = {path for text in ours for path in re.findall(r' from "(/[^"]+)"', text)}
    assert imported <= PAGES["/dashboard"].paths


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
    def auth_mode(self) -> str:
        return "keys"

    async def test_the_pages_are_there_to_log_in_and_all_else_is_closed(
        self, app: Api, client: httpx.AsyncClient, registry: Registry
    ) -> None:
        await registry.make_key("default", "admin", "", None, by="the test")
        paths = PAGES["/dashboard"].paths | PAGES["/docs"].paths
        statuses = {path: (await client.get(path)).status_code for path in paths}
        assert set(statuses.values()) == {200}
        assert (await client.get("/")).headers["location"] == "/dashboard"
        assert (await client.post("/", json={"inputs": "42"})).status_code == 401
        routes = app.openapi()["paths"]
        assert "security" not in routes["/"]["get"] and "security" in routes["/"]["post"]
        for path in ("/openapi.json", "/v1/cluster", "/docs/nothing"):
            assert (await client.get(path)).status_code == 401

    async def test_the_api_page_asks_for_a_key_and_reads_the_routes_with_its_cookie(
        self, client: httpx.AsyncClient, registry: Registry
    ) -> None:
        """As its script does; a browser does it in dashboard/test_page.py."""
        _, secret = await registry.make_key("default", "user", "", None, by="the test")
        page = await client.get("/docs")
        assert page.headers["content-type"].startswith("text/html") and 'id="login-form"' in page.text
        assert (await client.get("/openapi.json")).status_code == 401
        await client.post("/v1/login", json={"key": secret}, headers={"origin": "http://frontend"})
        assert "/v1/generate" in (await client.get("/openapi.json")).json()["paths"]
