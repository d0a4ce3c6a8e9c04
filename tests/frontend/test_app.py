import httpx


async def test_the_routes_are_documented(client: httpx.AsyncClient) -> None:
    assert (await client.get("/docs")).status_code == 200
    paths = (await client.get("/openapi.json")).json()["paths"]
    others = {"/v1/models", "/v1/cluster", "/v1/cluster/drain", "/health", "/ready", "/metrics"}
    assert set(paths) == {"/v1/generate", *others}
    assert all(operation["summary"] for path in paths.values() for operation in path.values())
    answers = paths["/v1/generate"]["post"]["responses"]
    schemas = [answers[status]["content"]["application/json"]["schema"]["$ref"] for status in ("400", "404", "422")]
    assert all(schema.endswith("/ErrorBody") for schema in schemas)
    body = paths["/v1/generate"]["post"]["requestBody"]["content"]["application/json"]
    assert body["schema"]["$ref"].endswith("GenerateBody")
