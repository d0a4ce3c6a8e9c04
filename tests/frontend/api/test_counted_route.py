import gc
import json
from collections.abc import Iterator

import httpx
import pytest

NUM_ITEMS = 9_999
JSON = {"content-type": "application/json"}


@pytest.fixture
def no_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collections")
@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/v1/generate", "input_ids"),
        ("/v1/completions", "prompt"),
        ("/v1/chat/completions", "messages"),
        ("/tokenize", "prompt"),
        ("/generate", "inputs"),
    ],
)
async def test_a_refused_body_is_freed_at_once(client: httpx.AsyncClient, path: str, field: str) -> None:
    """Not at the next garbage collection."""
    response = await client.post(path, content=json.dumps({field: ["5"] * NUM_ITEMS}), headers=JSON)
    assert response.status_code in (400, 422)
    assert not [kept for kept in gc.get_objects() if type(kept) is list and len(kept) == NUM_ITEMS]


async def test_a_body_of_too_many_strings(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/generate", json={"input_ids": ["5"] * 200_000})
    assert response.status_code == 400
    assert response.json()["error"]["message"] == "the body can't be read: it has more than 65536 strings"
