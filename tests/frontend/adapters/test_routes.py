"""/v1/adapters, over a registry and a store that are real and a cluster that is not."""

import io
import json
import zipfile
from typing import Any

import httpx
import pytest

from adapter_world import World
from punica_serve.errors import ClusterUnavailable, RegistryUnavailable
from waits import until

USER = {"caller": "acme user"}
OTHER = {"caller": "globex user"}


def archive(content: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("roman/adapter_config.json", "{}")
        file.writestr("roman/adapter_model.safetensors", content)
    return buffer.getvalue()


def form_files(content: str) -> dict[str, Any]:
    return {
        "config": ("adapter_config.json", b"{}"),
        "weights": ("adapter_model.safetensors", content.encode()),
    }


async def upload(api: httpx.AsyncClient, name: str, content: str, **headers: str) -> httpx.Response:
    headers = {"content-type": "application/zip", **(headers or USER)}
    return await api.post("/v1/adapters", params={"name": name}, content=archive(content), headers=headers)


async def test_an_archive_and_a_form_are_the_same_adapter(api: httpx.AsyncClient) -> None:
    first = await upload(api, "roman", "1")
    assert first.status_code == 201, first.text
    card = first.json()
    assert (card["full_name"], card["owner"], card["version"]) == ("acme/roman", "acme", 1)
    assert (card["ranks"], card["num_bytes"], card["pinned"]) == ({"q_proj": 8}, 100, False)
    again = await api.post("/v1/adapters", params={"name": "roman"}, files=form_files("1"), headers=USER)
    assert again.status_code == 200 and again.json()["version"] == 1
    newer = await api.post("/v1/adapters", params={"name": "roman"}, files=form_files("2"), headers=USER)
    assert newer.status_code == 201 and newer.json()["version"] == 2


async def test_the_answer_tells_what_else_the_name_meant(api: httpx.AsyncClient, world: World) -> None:
    assert (await upload(api, "roman", "1")).json()["shadows"] == []
    other = await upload(api, "globex/greek", "2", caller="default admin")
    await world.registry.grant("globex", "greek", "acme", by="test")
    assert other.json()["shadows"] == []
    assert (await upload(api, "greek", "3")).json()["shadows"] == ["globex/greek"]


async def test_a_source_is_fetched(api: httpx.AsyncClient, fetched: list[str]) -> None:
    body = {"name": "roman", "uri": "s3://bucket/1", "prefetch": True, "pinned": True}
    answer = await api.post("/v1/adapters", json=body, headers=USER)
    assert answer.status_code == 201 and fetched == ["s3://bucket/1"]
    assert answer.json()["source_uri"] == "s3://bucket/1" and answer.json()["pinned"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "name"),
        ({"name": "x"}, "uri"),
        ({"name": "x", "uri": ""}, "uri"),
        ({"name": "x", "uri": "s3://b/1", "pin": True}, "pin"),
        ({"name": "x", "uri": "s3://b/1", "pinned": 1}, "pinned"),
        ({"name": "\ud800", "uri": "s3://b/1"}, "name"),
        ({"name": "x", "uri": "s3://\ud800"}, "uri"),
    ],
)
async def test_a_wrong_body_is_422_and_names_the_field(api: httpx.AsyncClient, body: Any, param: str) -> None:
    answer = await api.post("/v1/adapters", content=json.dumps(body), headers={"content-type": "application/json"})
    assert answer.status_code == 422 and answer.json()["error"]["param"] == param


@pytest.mark.parametrize("name", ["", "x" * 129, "x" * 300, "a b"])
async def test_a_name_that_no_adapter_may_have_is_400_whatever_is_wrong_with_it(
    api: httpx.AsyncClient, name: str
) -> None:
    answers = [
        await api.post("/v1/adapters", json={"name": name, "uri": "s3://b/1"}),
        await upload(api, name, "1"),
    ]
    for answer in answers:
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "name")
        assert "must be 1 to 128 letters" in answer.json()["error"]["message"]


@pytest.mark.parametrize("limit", [{"max_adapters": 1}, {"max_adapter_bytes": 150}])
async def test_exceeding_the_tenants_limits_is_403_with_its_own_code(
    api: httpx.AsyncClient, world: World, limit: dict[str, int]
) -> None:
    await world.registry.patch_tenant("acme", limit, by="test")
    await upload(api, "roman", "1")
    by_source = await api.post("/v1/adapters", json={"name": "greek", "uri": "s3://bucket/3"}, headers=USER)
    for refused in (await upload(api, "greek", "2"), by_source):
        error = refused.json()["error"]
        assert (refused.status_code, error["code"]) == (403, "adapter_limit_reached")
        assert next(iter(limit)) in error["message"] and "retry-after" not in refused.headers
    assert (await upload(api, "roman", "2")).status_code in (200, 201), "a new version takes the place of the old"


async def test_nothing_is_called_by_a_long_name(api: httpx.AsyncClient) -> None:
    for method, action in (("GET", ""), ("DELETE", ""), ("POST", "/pin"), ("POST", "/prefetch")):
        assert (await api.request(method, f"/v1/adapters/{'x' * 300}{action}")).status_code == 404
    assert (await api.get("/v1/adapters", params={"after": "x" * 300})).status_code == 400


async def test_an_invalid_body_is_400(api: httpx.AsyncClient) -> None:
    cases = [
        ({}, b"{}", "Content-Type"),
        ({"content-type": "text/plain"}, b"{}", "Content-Type"),
        ({"content-type": "application/zip"}, b"{}", "name"),
    ]
    for headers, content, param in cases:
        answer = await api.post("/v1/adapters", content=content, headers=headers)
        assert answer.status_code == 400 and answer.json()["error"]["param"] == param
    answer = await api.post("/v1/adapters", content=b"{", headers={"content-type": "application/json"})
    message = "the body is not JSON: Expecting property name enclosed in double quotes at line 1 column 2"
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, message)
    answer = await api.post("/v1/adapters", content=b" " * (1 << 17), headers={"content-type": "application/json"})
    assert answer.status_code == 413


async def test_the_list_has_pages_and_says_where_adapters_are(api: httpx.AsyncClient, world: World) -> None:
    for name in ("a", "b", "c"):
        await upload(api, name, name)
    world.cluster.resident.clear()
    await api.post("/v1/adapters/b/prefetch", json={"gpus": ["CPU-1"]}, headers=USER)
    first = (await api.get("/v1/adapters", params={"limit": 2}, headers=USER)).json()
    assert [card["full_name"] for card in first["data"]] == ["acme/a", "acme/b"] and first["has_more"]
    assert first["data"][0]["residency"] == {"num_requests": 0, "gpus": [], "hosts": [], "disks": []}
    assert first["data"][1]["residency"]["gpus"] == ["CPU-1"]
    rest = (await api.get("/v1/adapters", params={"limit": 2, "after": "acme/b"}, headers=USER)).json()
    assert [card["full_name"] for card in rest["data"]] == ["acme/c"] and not rest["has_more"]
    assert (await api.get("/v1/adapters", params={"after": "acme/x"}, headers=USER)).status_code == 400
    world.cluster.connected = False
    assert (await api.get("/v1/adapters", headers=USER)).json()["data"][0]["residency"] is None


async def test_an_adapter_and_its_versions(api: httpx.AsyncClient) -> None:
    for content in ("1", "2"):
        await upload(api, "roman", content)
    for name in ("roman", "acme/roman"):
        card = (await api.get(f"/v1/adapters/{name}", headers=USER)).json()
        assert card["version"] == 2 and card["residency"]["disks"] == []
        assert [version["version"] for version in card["versions"]] == [2, 1]


async def test_pins(api: httpx.AsyncClient, world: World) -> None:
    digest = (await upload(api, "roman", "1")).json()["digest"]
    assert (await api.post("/v1/adapters/roman/pin", headers=USER)).json()["pinned"]
    assert world.cluster.pinned == {digest}
    assert not (await api.post("/v1/adapters/acme/roman/unpin", headers=USER)).json()["pinned"]
    assert world.cluster.pinned == set()
    # Without a scheduler it is the registry's all the same, and the reconciler sends it to the cluster later.
    world.cluster.connected = False
    assert (await api.post("/v1/adapters/roman/pin", headers=USER)).json()["pinned"]


async def test_a_prefetch_to_a_gpu_that_is_not_there(api: httpx.AsyncClient) -> None:
    await upload(api, "roman", "1")
    answer = await api.post("/v1/adapters/roman/prefetch", json={"gpus": ["CPU-7"]}, headers=USER)
    assert answer.status_code == 404 and answer.json()["error"]["code"] == "gpu_not_found"
    assert (await api.post("/v1/adapters/roman/prefetch", json={}, headers=USER)).status_code == 202
    everywhere = await api.post("/v1/adapters/roman/prefetch", headers=USER)
    assert (everywhere.status_code, everywhere.json()["gpus"]) == (202, None)


async def test_a_deletion_that_is_done_is_200(api: httpx.AsyncClient, world: World) -> None:
    await upload(api, "roman", "1")
    answer = await api.delete("/v1/adapters/roman", params={"wait_s": 60}, headers=USER)
    assert (answer.status_code, answer.json()["status"]) == (200, "deleted")
    assert world.stored() == set()
    assert (await api.get("/v1/adapters/roman", headers=USER)).status_code == 404
    assert (await api.get(answer.json()["status_url"], headers=USER)).json()["status"] == "deleted"
    assert (await api.delete("/v1/adapters/roman", headers=USER)).status_code == 404


async def test_a_deletion_that_takes_longer_is_202(api: httpx.AsyncClient, world: World) -> None:
    digest = (await upload(api, "roman", "1")).json()["digest"]
    await api.post("/v1/adapters/roman/prefetch", json={}, headers=USER)
    world.cluster.in_use = {digest}
    answer = await api.delete("/v1/adapters/roman", params={"wait_s": 0}, headers=USER)
    assert (answer.status_code, answer.json()["status"]) == (202, "deleting")
    status = (await api.get(answer.json()["status_url"], headers=USER)).json()
    assert status["status"] == "deleting" and status["residency"]["gpus"] == ["CPU-1"]
    # Other tenants learn nothing of it.
    assert (await api.get(answer.json()["status_url"], headers=OTHER)).status_code == 404
    world.cluster.in_use = set()
    await until(lambda: not world.stored())


async def test_bytes_that_another_has_too_are_no_reason_to_wait(api: httpx.AsyncClient, world: World) -> None:
    await upload(api, "roman", "1")
    await upload(api, "latin", "1")
    answer = await api.delete("/v1/adapters/roman", params={"wait_s": 0}, headers=USER)
    assert (answer.status_code, answer.json()["status"]) == (200, "deleted")
    assert answer.json()["shared_with"] == ["acme/latin"] and len(world.stored()) == 1
    refused = await api.get(answer.json()["status_url"], headers=USER)
    assert refused.status_code == 404 and "not deleted: acme/latin has them" in refused.text


async def test_other_tenants_adapters_with_the_same_bytes_are_not_revealed(api: httpx.AsyncClient) -> None:
    await upload(api, "roman", "1")
    await upload(api, "theirs", "1", **OTHER)
    answer = (await api.delete("/v1/adapters/roman", headers=USER)).json()
    assert (answer["status"], answer["shared_with"]) == ("deleted", [])
    assert (await api.get(answer["status_url"], headers=USER)).json()["status"] == "deleted"


async def test_the_deletion_of_unknown_bytes_is_not_found(api: httpx.AsyncClient) -> None:
    digest = (await upload(api, "roman", "1")).json()["digest"]
    for caller, unknown in ((USER, digest), (OTHER, digest), ({}, digest), (USER, "0" * 64), ({}, "0" * 64)):
        answer = await api.get(f"/v1/adapter-deletions/{unknown}", headers=caller)
        assert (answer.status_code, answer.json()["error"]["param"]) == (404, "digest")


async def test_others_see_nothing_and_who_was_granted_changes_nothing(api: httpx.AsyncClient, world: World) -> None:
    body = {"name": "roman", "uri": "s3://bucket/1"}
    assert (await api.post("/v1/adapters", json=body, headers=USER)).status_code == 201
    calls = [("GET", ""), ("DELETE", ""), ("POST", "/pin"), ("POST", "/unpin"), ("POST", "/prefetch")]
    for method, action in calls:
        json: dict[str, str] | None = {} if action == "/prefetch" else None
        unknown = await api.request(method, f"/v1/adapters/acme/x{action}", json=json, headers=OTHER)
        others = await api.request(method, f"/v1/adapters/acme/roman{action}", json=json, headers=OTHER)
        assert (others.status_code, unknown.status_code) == (404, 404)
        assert unknown.json()["error"]["param"] == "name"
        assert others.text == unknown.text.replace("acme/x", "acme/roman")
    assert (await api.get("/v1/adapters", headers=OTHER)).json()["data"] == []
    await world.registry.grant("acme", "roman", "globex", by="test")
    card = (await api.get("/v1/adapters/roman", headers=OTHER)).json()
    assert (card["full_name"], card["source_uri"]) == ("acme/roman", None)
    for method, action in (("DELETE", ""), ("POST", "/pin"), ("POST", "/unpin")):
        assert (await api.request(method, f"/v1/adapters/roman{action}", headers=OTHER)).status_code == 403


async def test_a_registry_that_is_down_is_503_and_names_are_still_found(
    api: httpx.AsyncClient, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await upload(api, "roman", "1")

    def down(*_: str) -> None:
        raise RegistryUnavailable("the database is down")

    monkeypatch.setattr(world.registry, "keeping_files", down)
    monkeypatch.setattr(world.registry, "versions", down)
    assert (await upload(api, "greek", "2")).status_code == 503
    assert (await api.get("/v1/adapters", headers=USER)).status_code == 200
    shown = await api.get("/v1/adapters/roman", headers=USER)
    assert shown.status_code == 200 and [card["version"] for card in shown.json()["versions"]] == [1]


async def test_without_a_scheduler_a_deletion_waits(
    api: httpx.AsyncClient, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await upload(api, "roman", "1")

    async def away(*_: object) -> None:
        raise ClusterUnavailable("the scheduler can't be reached")

    monkeypatch.setattr(world.cluster, "residency", away)
    answer = await api.delete("/v1/adapters/roman", params={"wait_s": 0.1}, headers=USER)
    assert answer.status_code == 202
    assert (await api.get(answer.json()["status_url"], headers=USER)).json()["residency"] is None
