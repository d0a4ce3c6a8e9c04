import httpx

from punica_serve.adapters.catalog import AdapterCatalog


async def test_the_base_model_comes_first_and_is_the_others_parent(
    client: httpx.AsyncClient, catalog: AdapterCatalog
) -> None:
    listing = (await client.get("/v1/models")).json()
    assert listing["object"] == "list"
    base, adapter = listing["data"]
    assert base.pop("created") == adapter.pop("created") > 0
    common = {"object": "model", "owned_by": "punica-serve", "max_model_len": 64, "permission": []}
    assert base == {"id": "numbers", "root": "/models/numbers", "parent": None, **common}
    assert adapter == {"id": "roman", "root": "/adapters/roman", "parent": "numbers", **common}
