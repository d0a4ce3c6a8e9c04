"""Lists whose filters must not be lost, and routes where a query is of no use."""

import httpx
import pytest

CASES = [
    ("/v1/usage", "tennant", "did you mean `tenant`?"),
    ("/v1/usage", "made_up", "it has `tenant` and `tenant_id` and `since` and `until`"),
    ("/v1/adapters", "tenant", "it has `limit` and `after`"),
    ("/v1/adapters", "limits", "did you mean `limit`?"),
    ("/v1/tenants", "suspended", "it has none"),
    ("/v1/keys", "tenants", "did you mean `tenant`?"),
    ("/v1/keys", "role", "it has `tenant`"),
    ("/v1/audit", "tennant", "did you mean `tenant`?"),
]


@pytest.mark.parametrize(("path", "name", "advice"), CASES)
async def test_a_filter_that_there_is_not(client: httpx.AsyncClient, path: str, name: str, advice: str) -> None:
    response = await client.get(path, params={name: "acme"})
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (400, name, "invalid_request")
    assert error["message"] == f"`{name}`: {path} has no such query parameter; {advice}"
    assert (await client.head(path, params={name: "acme"})).status_code == 400


async def test_a_filter_that_is_given_twice(client: httpx.AsyncClient) -> None:
    response = await client.get("/v1/usage?tenant=default&tenant=acme")
    assert response.status_code == 400
    assert response.json()["error"]["message"] == "`tenant` is given twice, and only one would count"


@pytest.mark.parametrize(
    "path", ["/v1/usage?tenant=default&since=1&until=2", "/v1/adapters?limit=3", "/v1/keys?tenant=a"]
)
async def test_those_that_there_are(client: httpx.AsyncClient, path: str) -> None:
    assert (await client.get(path)).status_code == 200


@pytest.mark.parametrize("path", ["/v1/models", "/v1/adapters/roman", "/health", "/metrics", "/info"])
async def test_elsewhere_they_are_ignored(client: httpx.AsyncClient, path: str) -> None:
    assert (await client.get(path, params={"made_up": "1"})).status_code == 200
