import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi import Response

from punica_frontend.api_application import Api


@pytest.fixture
async def page(client: httpx.AsyncClient) -> dict[str, Any]:
    page: dict[str, Any] = (await client.get("/openapi.json")).json()
    return page


def operations(page: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in page["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


async def test_the_page_is_shown(client: httpx.AsyncClient) -> None:
    assert (await client.get("/docs")).status_code == 200


async def test_every_route_is_described(page: dict[str, Any]) -> None:
    assert {"POST /v1/generate", "GET /v1/generate/stream/schema", "GET /v1/cluster", "GET /"} < dict(
        operations(page)
    ).keys()
    for name, operation in operations(page):
        assert operation["summary"] and operation["tags"], name


def undescribed(page: dict[str, Any]) -> set[str]:
    """Answers that the page does not tell the shape of, and operations without a success among their answers.

    Who is sent on to another page is answered without a body.
    """
    found = set()
    for name, operation in operations(page):
        successes = [status for status in operation["responses"] if status[0] in "23"]
        found |= set() if successes else {name}
        for status, response in operation["responses"].items():
            if status[0] == "3":
                continue
            schemas = [content.get("schema") for content in response.get("content", {}).values()]
            found |= set() if schemas and all(schemas) else {f"{name} {status}"}
    return found


async def test_every_answer_of_every_route_has_a_schema(page: dict[str, Any]) -> None:
    assert undescribed(page) == set()


async def test_a_route_without_a_schema_is_found(app: Api, client: httpx.AsyncClient) -> None:
    @app.get("/v1/forgotten")
    async def forgotten() -> Response:
        return Response()

    assert undescribed((await client.get("/openapi.json")).json()) == {"GET /v1/forgotten 200"}


async def test_every_error_is_of_the_one_shape_unless_the_route_speaks_anothers(page: dict[str, Any]) -> None:
    for name, operation in operations(page):
        for status, response in operation["responses"].items():
            if int(status) >= 400 and not {"LoRAX", "vLLM"} & set(operation["tags"]):
                schema = response["content"]["application/json"]["schema"]
                assert schema == {"$ref": "#/components/schemas/ErrorBody"}, (name, status)


async def test_the_page_lists_all_refusals_of_a_body(page: dict[str, Any]) -> None:
    native, openai = (page["paths"][path]["post"]["responses"] for path in ("/v1/generate", "/v1/completions"))
    assert {"400", "404", "408", "413", "422", "429", "500", "503"} < native.keys()
    assert "Retry-After" in native["429"]["headers"]
    assert "422" not in openai


async def test_all_references_lead_somewhere(page: dict[str, Any]) -> None:
    names = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(page)))
    assert names <= page["components"]["schemas"].keys()
    assert "HTTPValidationError" not in names


async def test_structs_that_travel_as_arrays_are_objects_with_names(page: dict[str, Any]) -> None:
    gpu = page["components"]["schemas"]["GpuSnapshot"]
    assert gpu["type"] == "object" and gpu["properties"]["batch_size_max"]["type"] == "integer"
    assert "is_draining" in gpu["required"]


async def test_limits_are_what_they_are(page: dict[str, Any]) -> None:
    seed = page["components"]["schemas"]["GenerateBody"]["properties"]["seed"]
    assert {"type": "integer", "minimum": 0, "maximum": (1 << 64) - 1} in seed["anyOf"]
