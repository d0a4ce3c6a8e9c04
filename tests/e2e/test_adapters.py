"""The life of adapters in a running cluster: registered, served, replaced under way, deleted."""

import asyncio
import os
from pathlib import Path
from typing import Any

import httpx
import pytest

import waits
from adapter_variants import ANSWERS, variant, zipped
from up_cluster import Until, UpCluster

#: Its answer takes far longer than an upload, or than another's whole answer, and fits the demo's context.
LONG = {"prompt": "42", "temperature": 0.8, "seed": 7, "ignore_eos": True, "max_tokens": 1_000}
ZIP = {"content-type": "application/zip"}


@pytest.fixture(scope="module")
def undisturbed(cluster: UpCluster) -> list[int]:
    """The answer of the demo's own adapter: the same weights under another digest draw the same tokens."""
    (stream,) = cluster.new_streams(1)
    asyncio.run(cluster.stream({**LONG, "lora_id": "roman"}, stream))
    token_ids: list[int] = stream.token_ids
    return token_ids


async def upload(http: httpx.AsyncClient, name: str, folder: Path) -> dict[str, Any]:
    answer = await http.post("/v1/adapters", params={"name": name}, content=zipped(folder), headers=ZIP)
    assert answer.is_success, answer.text
    card: dict[str, Any] = answer.json()
    return card


async def text_of(http: httpx.AsyncClient, lora_id: str) -> str:
    answer = await http.post("/v1/generate", json={"prompt": "42", "lora_id": lora_id})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["text"])


async def delete(http: httpx.AsyncClient, name: str) -> httpx.Response:
    return await http.delete(f"/v1/adapters/{name}", params={"wait_s": 60})


def shown(cluster: UpCluster, name: str) -> Any:
    return cluster.get(f"/v1/adapters/{name}").json()


async def test_from_an_upload_to_the_last_byte(
    cluster: UpCluster, http: httpx.AsyncClient, tmp_path: Path, until: Until
) -> None:
    card = await upload(http, "uploaded", variant(tmp_path, "roman"))
    assert await text_of(http, "uploaded") == ANSWERS["roman"]
    assert (await http.post("/v1/adapters/uploaded/prefetch", json={})).status_code == 202
    await until(lambda: len(shown(cluster, "uploaded")["residency"]["gpus"]) == 2)
    assert shown(cluster, "uploaded")["ranks"] == {"q_proj": 8, "v_proj": 8}
    store = cluster.log.parent / "data" / "store"
    assert card["digest"] in os.listdir(store)
    packed = cluster.log.parent / "data" / "cache" / "packed" / card["digest"]
    await until(lambda: packed.exists() and bool(os.listdir(packed)))
    answer = await delete(http, "uploaded")
    assert (answer.status_code, answer.json()["status"]) == (200, "deleted")
    assert card["digest"] not in os.listdir(store)
    await until(lambda: not packed.exists())
    snapshot = (await http.get("/v1/cluster")).json()
    assert all(card["digest"] not in gpu["resident_adapters"] for gpu in snapshot["gpus"])
    assert (await http.post("/v1/generate", json={"prompt": "42", "lora_id": "uploaded"})).status_code == 404


async def test_from_a_uri_in_vllms_words(http: httpx.AsyncClient, tmp_path: Path) -> None:
    path = str(variant(tmp_path, "hex"))
    loaded = await http.post("/v1/load_lora_adapter", json={"lora_name": "loaded", "lora_path": path})
    assert loaded.text == "Success: LoRA adapter 'loaded' added successfully."
    assert await text_of(http, "loaded") == ANSWERS["hex"]
    missing = {"lora_name": "x", "lora_path": str(tmp_path / "nowhere")}
    assert (await http.post("/v1/load_lora_adapter", json=missing)).status_code == 404
    unloaded = await http.post("/v1/unload_lora_adapter", json={"lora_name": "loaded"})
    assert unloaded.text == "Success: LoRA adapter 'loaded' removed successfully."


async def test_streams_finish_on_the_version_they_began_with(
    cluster: UpCluster, http: httpx.AsyncClient, undisturbed: list[int], tmp_path: Path, until: Until
) -> None:
    await upload(http, "changing", variant(tmp_path, "roman"))
    streams = cluster.new_streams(4)
    async with asyncio.TaskGroup() as group:
        for stream in streams:
            group.create_task(cluster.stream({**LONG, "lora_id": "changing"}, stream))
        await until(lambda: all(len(stream.token_ids) >= 10 for stream in streams))
        assert (await upload(http, "changing", variant(tmp_path, "hex")))["version"] == 2
        assert await text_of(http, "changing") == ANSWERS["hex"]
        assert all(stream.finish_reason is None for stream in streams)
    assert [stream.token_ids for stream in streams] == [undisturbed] * 4
    assert (await delete(http, "changing")).status_code == 200


async def test_a_version_finds_its_own_cached_pages_alone(http: httpx.AsyncClient, tmp_path: Path) -> None:
    """The name leads to other weights while the pages of the first are cached, and back to the first."""
    body = {"model": "cached", "prompt": list(range(10, 60)), "max_tokens": 8, "temperature": 0}

    async def complete(folder: Path) -> tuple[str, int]:
        await upload(http, "cached", folder)
        answer = (await http.post("/v1/completions", json=body)).raise_for_status().json()
        return answer["choices"][0]["text"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    roman, hexadecimal = variant(tmp_path, "roman"), variant(tmp_path, "hex")
    (first, uncached), (again, cached) = await complete(roman), await complete(roman)
    assert first == again and (uncached, cached) == (0, 48)
    other, found = await complete(hexadecimal)
    assert other != first and found == 0
    assert await complete(roman) == (first, 48)
    assert (await delete(http, "cached")).status_code == 200


async def test_what_is_deleted_under_way_goes_when_its_last_stream_ends(
    cluster: UpCluster, http: httpx.AsyncClient, undisturbed: list[int], tmp_path: Path, until: Until
) -> None:
    card = await upload(http, "leaving", variant(tmp_path, "roman"))
    (stream,) = cluster.new_streams(1)
    async with asyncio.TaskGroup() as group:
        group.create_task(cluster.stream({**LONG, "lora_id": "leaving"}, stream))
        await until(lambda: len(stream.token_ids) >= 10)
        answer = await http.delete("/v1/adapters/leaving", params={"wait_s": 0})
        assert (answer.status_code, answer.json()["status"]) == (202, "deleting")
        assert answer.json()["residency"]["num_requests"] == 1
        assert (await http.post("/v1/generate", json={"prompt": "42", "lora_id": "leaving"})).status_code == 404
    assert stream.token_ids == undisturbed

    async def is_deleted() -> bool:
        return bool((await http.get(answer.json()["status_url"])).json()["status"] == "deleted")

    await waits.until(is_deleted)
    assert card["digest"] not in os.listdir(cluster.log.parent / "data" / "store")


async def test_a_bad_adapter_is_refused_by_its_tensor(http: httpx.AsyncClient, tmp_path: Path) -> None:
    folder = variant(tmp_path, "roman")
    config = (folder / "adapter_config.json").read_text()
    (folder / "adapter_config.json").write_text(config.replace('"r": 8', '"r": 16'))
    answer = await http.post("/v1/adapters", params={"name": "bad"}, content=zipped(folder), headers=ZIP)
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "adapter_rejected"
    assert answer.json()["error"]["param"].endswith("lora_A.weight")
    assert (await http.get("/v1/adapters/bad")).status_code == 404
