import gc
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

NUM_ITEMS = 9_999


@pytest.fixture
def no_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collections")
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/generate", {"input_ids": ["5"] * NUM_ITEMS}),
        ("/v1/completions", {"prompt": ["5"] * NUM_ITEMS}),
        ("/v1/chat/completions", {"messages": ["5"] * NUM_ITEMS}),
        ("/tokenize", {"prompt": ["5"] * NUM_ITEMS}),
        ("/generate", {"inputs": ["5"] * NUM_ITEMS}),
    ],
)
async def test_a_refused_body_is_freed_at_once(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> None:
    """Not at the next garbage collection."""
    response = await client.post(path, json=body)
    assert response.status_code in (400, 422)
    (sent,) = body.values()
    assert not [kept for kept in gc.get_objects() if type(kept) is list and kept is not sent and len(kept) == NUM_ITEMS]


async def test_a_body_of_too_many_strings(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/generate", json={"input_ids": ["5"] * 200_000})
    assert response.status_code == 400
    assert response.json()["error"]["message"] == "the body can't be read: it has more than 65536 strings"
