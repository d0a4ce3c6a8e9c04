"""Answers of routes as the OpenAPI page describes them. Routes pass these to FastAPI's ``responses``."""

import inspect
from collections.abc import Sequence
from typing import Any

import msgspec

from punica_frontend.api.errors import RETRY_AFTER_S
from punica_frontend.api.schemas import ErrorBody

Responses = dict[int | str, dict[str, Any]]

#: Where the page keeps the schemas of structs.
REF = "#/components/schemas/"
_RETRY_AFTER = {"Retry-After": {"description": "Seconds to wait before trying again.", "schema": {"type": "integer"}}}

_REFUSALS = {
    400: "The body is not JSON, or a field can't be served.",
    401: "The API key is missing or not valid.",
    403: "The API key does not allow this, or the request comes from another site's page.",
    404: "It does not exist, or you may not use it.",
    408: "The body did not arrive in time.",
    409: "It exists already, or its current state does not allow the change.",
    413: "The body is too long.",
    415: "The body is compressed.",
    422: "A field is unknown, missing, of the wrong type or out of range.",
    424: "The model or the adapter failed.",
    429: "The queue is full or a quota is used up; try again later.",
    500: "A bug of the server, whose log says more; or the cluster gave up on the request.",
    503: "The scheduler or the registry can't be reached, or the frontend has too many connections; try again later.",
}


def refusals(*statuses: int, body: type = ErrorBody) -> Responses:
    """Returns ``responses`` for a route that may answer with these errors. ``body`` is their shape, one of STRUCTS."""
    return {status: response for one in statuses for status, response in refusal(one, _REFUSALS[one], body).items()}


def refusal(status: int, description: str, body: type = ErrorBody) -> Responses:
    """Returns the ``responses`` entry of one error, with the route's own description."""
    headers = {"headers": _RETRY_AFTER} if status in RETRY_AFTER_S else {}
    return {status: {**json_answer(body, description), **headers}}


def json_answer(struct: type, description: str, **extra: Any) -> dict[str, Any]:
    """Describes a response whose body is one of STRUCTS. ``extra``, such as ``example``, goes beside the schema."""
    schema = {"$ref": f"{REF}{struct.__name__}"}
    return {"description": description, "content": {"application/json": {"schema": schema, **extra}}}


def answer_or_events(answer: type, event: type, **extra: Any) -> dict[str, Any]:
    """Describes a route that answers with one struct, or with events of another that end with `[DONE]`."""
    response = json_answer(answer, "The answer; with `stream`, server-sent events of its pieces.", **extra)
    response["content"] |= events_answer(event, "", end="; the last is `[DONE]`")["content"]
    return response


def either_answer(answer: type, event: type) -> dict[str, Any]:
    """Describes a route that answers with a list of one struct, or with events of another."""
    response = events_answer(event, "The answer in a list; with `stream`, an event for each token.")
    items = {"type": "array", "items": {"$ref": f"{REF}{answer.__name__}"}}
    response["content"]["application/json"] = {"schema": items}
    return response


def text_answer(description: str, media_type: str = "text/plain") -> dict[str, Any]:
    """Describes a plain text response."""
    return {"description": description, "content": {media_type: {"schema": {"type": "string"}}}}


def events_answer(event: type, description: str, *, end: str = "") -> dict[str, Any]:
    """Describes server-sent events whose data is one of STRUCTS as JSON."""
    data = {"type": "string", "description": f"JSON of a `{event.__name__}`{end}."}
    schema = {"type": "object", "properties": {"data": data}, "required": ["data"]}
    return {"description": description, "content": {"text/event-stream": {"schema": schema}}}


def struct_schemas(structs: Sequence[type], ref: str = REF) -> dict[str, Any]:
    """Returns JSON Schemas of the structs, and of those that they refer to, by name."""
    _, schemas = msgspec.json.schema_components(structs, ref_template=ref + "{name}")
    by_name = {struct.__name__: struct for struct in structs}
    return {name: _as_object(schema, by_name.get(name)) for name, schema in schemas.items()}


def _as_object(schema: dict[str, Any], struct: type | None) -> dict[str, Any]:
    """Cleans up the description, and names the fields that msgspec describes by position."""
    if "description" in schema:
        schema = {**schema, "description": inspect.cleandoc(schema["description"])}
    if struct is None or not issubclass(struct, msgspec.Struct) or "prefixItems" not in schema:
        return schema
    names = struct.__struct_fields__
    of_positions = [{key: value for key, value in item.items() if key != "default"} for item in schema["prefixItems"]]
    properties = dict(zip(names, of_positions, strict=True))
    described = {key: text for key, text in schema.items() if key in ("title", "description")}
    return {**described, "type": "object", "properties": properties, "required": list(names)}
