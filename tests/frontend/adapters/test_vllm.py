"""vLLM's words, as its clients know them."""

import json

import httpx
import pytest

from adapter_world import World
from punica_frontend.adapters.vllm_answers import uri_of, vllm_error
from punica_serve.errors import Conflict
from punica_serve.protocol import AdapterRef
from punica_serve.registry.records import AdapterVersion
from punica_serve.registry.shared_adapters import SharedAdapters

REF = AdapterRef("d1", "/adapters/roman", 100, {"q_proj": 8})


async def load(
    api: httpx.AsyncClient, name: str = "roman", path: str = "s3://bucket/1", **more: object
) -> httpx.Response:
    return await api.post("/v1/load_lora_adapter", json={"lora_name": name, "lora_path": path, **more})


def error_of(answer: httpx.Response) -> tuple[object, ...]:
    error = answer.json()["error"]
    assert error["code"] == answer.status_code and error["param"] is None
    return answer.status_code, error["type"], error["message"]


async def test_load_and_unload(api: httpx.AsyncClient) -> None:
    answer = await load(api)
    assert (answer.status_code, answer.text) == (200, "Success: LoRA adapter 'roman' added successfully.")
    assert answer.headers["content-type"].startswith("text/plain")
    answer = await api.post("/v1/unload_lora_adapter", json={"lora_name": "roman", "lora_int_id": 7})
    assert (answer.status_code, answer.text) == (200, "Success: LoRA adapter 'roman' removed successfully.")
    assert (await api.get("/v1/adapters")).json()["data"] == []


async def test_a_name_that_is_taken_is_loaded_in_place_if_at_all(api: httpx.AsyncClient) -> None:
    await load(api)
    message = (
        "The lora adapter 'roman' has already been loaded. If you want to load the adapter in place, set"
        " 'load_inplace' to True."
    )
    assert error_of(await load(api, path="s3://bucket/2")) == (400, "InvalidUserInput", message)
    assert (await load(api, path="s3://bucket/2", load_inplace=True)).status_code == 200
    assert (await api.get("/v1/adapters/roman")).json()["version"] == 2


@pytest.mark.parametrize("body", [b"[]", b"{", b'{"lora_name": 7}', b"\xff"])
async def test_a_body_that_can_not_be_read_is_refused_in_vllms_shape(api: httpx.AsyncClient, body: bytes) -> None:
    for route in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
        answer = await api.post(route, content=body, headers={"content-type": "application/json"})
        assert error_of(answer)[:2] == (400, "InvalidUserInput")
        assert "error parsing the body" not in str(error_of(answer)[2])


@pytest.mark.parametrize(("status", "kind"), [(415, "BadRequestError"), (500, "InternalServerError")])
def test_a_status_without_a_type_of_its_own_says_whose_mistake_it_is(status: int, kind: str) -> None:
    assert json.loads(bytes(vllm_error(status, "compressed").body))["error"]["type"] == kind


@pytest.mark.parametrize("body", [{}, {"lora_name": "x"}, {"lora_path": "/x"}, {"lora_name": "", "lora_path": "/x"}])
async def test_a_field_that_is_missing(api: httpx.AsyncClient, body: dict[str, str]) -> None:
    message = "Both 'lora_name' and 'lora_path' must be provided."
    answer = await api.post("/v1/load_lora_adapter", json=body)
    assert error_of(answer) == (400, "InvalidUserInput", message)


async def test_an_unknown_adapter(api: httpx.AsyncClient) -> None:
    answer = await load(api, path="s3://bucket/missing")
    message = "Loading lora roman failed: No adapter found for s3://bucket/missing: there is nothing"
    assert error_of(answer) == (404, "NotFoundError", message)
    answer = await api.post("/v1/unload_lora_adapter", json={"lora_name": "roman"})
    assert error_of(answer) == (404, "NotFoundError", "The lora adapter 'roman' cannot be found.")
    answer = await api.post("/v1/unload_lora_adapter", json={"lora_name": "x" * 300})
    assert error_of(answer) == (404, "NotFoundError", f"The lora adapter '{'x' * 200}' cannot be found.")
    answer = await api.post("/v1/unload_lora_adapter", json={})
    message = "'lora_name' needs to be provided to unload a LoRA adapter."
    assert error_of(answer) == (400, "InvalidUserInput", message)


async def test_a_tenant_at_its_limit_gets_an_error(api: httpx.AsyncClient, world: World) -> None:
    await world.registry.patch_tenant("default", {"max_adapters": 1}, by="test")
    await load(api)
    status, kind, message = error_of(await load(api, name="greek", path="s3://bucket/2"))
    assert (status, kind) == (403, "PermissionDeniedError")
    assert "may have 1 adapter (`max_adapters`) and has 1; delete one first" in str(message)


async def test_an_adapter_that_can_not_be_loaded(api: httpx.AsyncClient) -> None:
    assert error_of(await load(api, name="numbers"))[:2] == (400, "InvalidUserInput")
    assert error_of(await load(api, path="s3://bucket/broken"))[:2] == (500, "InternalServerError")
    assert error_of(await load(api, path="s3://bucket/down"))[:2] == (503, "InternalServerError")


@pytest.mark.parametrize(
    "shared",
    [SharedAdapters({"roman": AdapterVersion("shared", "shared", "roman", 1, REF, None, None, None, False, 0.0)})],
)
async def test_the_config_files_adapters_stay(api: httpx.AsyncClient, shared: SharedAdapters) -> None:
    answer = await api.post("/v1/unload_lora_adapter", json={"lora_name": "roman"})
    message = "adapter 'shared/roman' comes from the config file; change it there"
    assert error_of(answer) == (400, "InvalidUserInput", message)


def test_a_path_becomes_a_uri() -> None:
    assert uri_of("/adapters/roman") == "file:///adapters/roman"
    assert uri_of("s3://bucket/roman") == "s3://bucket/roman"
    assert uri_of("owner/roman") == "hf://owner/roman"


async def test_files_that_are_being_removed_are_no_name_that_is_taken(
    api: httpx.AsyncClient, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def removing(_: str) -> None:
        raise Conflict("the files are being removed; try again", retry_after_s=0.01)

    monkeypatch.setattr(world.registry, "keeping_files", removing)
    monkeypatch.setattr("punica_frontend.adapters.registration.REMOVAL_TIMEOUT_S", 0.0)
    answer = await load(api)
    assert answer.status_code == 500 and "are being removed" in answer.text
