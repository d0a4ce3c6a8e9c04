"""The OpenAPI page: what FastAPI can't tell of our routes by itself, said once for all of them.

Routes tell their own answers through ``refusals`` and ``json_answer``. What stands before all routes is added here: API
keys, limits of bodies and of connections.
"""

import copy
import inspect
from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec
from fastapi import FastAPI
from starlette.types import ASGIApp

from punica_frontend.adapters.cards import (
    AdapterCard,
    AdapterDetail,
    AdapterList,
    Deletion,
    PlacedAdapter,
    Prefetch,
    RegisteredAdapter,
)
from punica_frontend.adapters.vllm_words import VllmErrorBody
from punica_frontend.answers import Answer, Drain, Frame, Health, Ready
from punica_frontend.errors import RETRY_AFTER_S
from punica_frontend.openai.chat_answers import ChatChunk, ChatCompletion
from punica_frontend.openai.completion_answers import Completion
from punica_frontend.openai.model_cards import ModelCard, ModelList
from punica_frontend.openai.token_answers import Detokenized, Tokens
from punica_frontend.request_ids import RequestIds
from punica_frontend.schemas import ErrorBody
from punica_frontend.tenancy import answers as tenancy
from punica_frontend.tenancy.gate import PUBLIC_GETS
from punica_frontend.tgi.answers import Generated, StreamEvent
from punica_frontend.tgi.errors import TgiErrorBody
from punica_frontend.tgi.info import Info
from punica_frontend.watch.view import CLUSTER_STRUCTS

Responses = dict[int | str, dict[str, Any]]

#: What answers are made of, beside pydantic's models, which FastAPI knows by itself. All are JSON objects, also those
#: that travel as arrays between processes.
STRUCTS = (
    ErrorBody,
    Answer,
    Frame,
    Health,
    Ready,
    Drain,
    Completion,
    ChatCompletion,
    ChatChunk,
    ModelCard,
    ModelList,
    Tokens,
    Detokenized,
    TgiErrorBody,
    Generated,
    StreamEvent,
    Info,
    AdapterCard,
    RegisteredAdapter,
    PlacedAdapter,
    AdapterDetail,
    AdapterList,
    Deletion,
    Prefetch,
    VllmErrorBody,
    *tenancy.STRUCTS,
    *CLUSTER_STRUCTS,
)

_REF = "#/components/schemas/"
_RETRY_AFTER = {
    "Retry-After": {"description": "Seconds after which trying again may help.", "schema": {"type": "integer"}}
}

_REFUSALS = {
    400: "The body is not JSON, or a field can't be served.",
    401: "No API key, or one that is not valid.",
    403: "The API key does not allow this, or a page of another site asks for it.",
    404: "There is nothing of this name, or it is not yours.",
    408: "The body did not come in time.",
    409: "What is to be made exists, or what is to be changed is in the way.",
    413: "The body is too long.",
    415: "The body is compressed.",
    422: "A field is unknown, missing, of the wrong type or out of range.",
    424: "The model or the adapter can't be run.",
    429: "The queue is full or a quota is used up; try again later.",
    500: "A bug of the server, whose log says more; or the cluster gave up on the request.",
    503: "What the request needs can't be reached, or the frontend has too many connections; try again later.",
}

_LIMITS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
MAX_UINT64 = (1 << 64) - 1

_SECURITY_SCHEMES = {
    "key": {"type": "http", "scheme": "bearer", "description": "An API key."},
    "session": {"type": "apiKey", "in": "cookie", "name": "punica_session", "description": "From /v1/login."},
}


def refusals(*statuses: int, body: type = ErrorBody) -> Responses:
    """``responses`` of a route that may answer with these errors. ``body`` is their shape, one of STRUCTS."""
    return {status: response for one in statuses for status, response in refusal(one, _REFUSALS[one], body).items()}


def refusal(status: int, description: str, body: type = ErrorBody) -> Responses:
    """The same for one error, in words of the route's own."""
    headers = {"headers": _RETRY_AFTER} if status in RETRY_AFTER_S else {}
    return {status: {**json_answer(body, description), **headers}}


def json_answer(struct: type, description: str, **extra: Any) -> dict[str, Any]:
    """A response whose body is one of STRUCTS. ``extra`` goes beside the schema: ``example`` and the like."""
    schema = {"$ref": f"{_REF}{struct.__name__}"}
    return {"description": description, "content": {"application/json": {"schema": schema, **extra}}}


def answer_or_events(answer: type, event: type, **extra: Any) -> dict[str, Any]:
    """The response of a route that answers with one struct, or with events of another that `[DONE]` ends."""
    response = json_answer(answer, "The answer; with `stream`, server-sent events of its pieces.", **extra)
    response["content"] |= events_answer(event, "", end="; the last is `[DONE]`")["content"]
    return response


def either_answer(answer: type, event: type) -> dict[str, Any]:
    """The response of a route that answers with a list of one struct, or with events of another."""
    response = events_answer(event, "The answer in a list; with `stream`, an event for each token.")
    items = {"type": "array", "items": {"$ref": f"{_REF}{answer.__name__}"}}
    response["content"]["application/json"] = {"schema": items}
    return response


def text_answer(description: str, media_type: str = "text/plain") -> dict[str, Any]:
    """A response of plain text."""
    return {"description": description, "content": {media_type: {"schema": {"type": "string"}}}}


def events_answer(event: type, description: str, *, end: str = "") -> dict[str, Any]:
    """A response of server-sent events, whose data is JSON of one of STRUCTS."""
    data = {"type": "string", "description": f"JSON of a `{event.__name__}`{end}."}
    schema = {"type": "object", "properties": {"data": data}, "required": ["data"]}
    return {"description": description, "content": {"text/event-stream": {"schema": schema}}}


class Api(FastAPI):
    """FastAPI with a page that is whole."""

    def __init__(
        self,
        *,
        title: str,
        version: str,
        description: str,
        needs_key: Callable[[], bool],
        public_paths: Collection[str],
    ) -> None:
        """``needs_key`` tells whether callers have to show a key now, but for ``public_paths``."""
        # FastAPI's own pages load their scripts from elsewhere: /docs is one of ours.
        super().__init__(title=title, version=version, description=description, docs_url=None, redoc_url=None)
        self._needs_key = needs_key
        self._public_paths = public_paths
        self._pages: dict[bool, dict[str, Any]] = {}

    def build_middleware_stack(self) -> ASGIApp:
        """Round what answers for bugs of ours too: those are what ids are asked for most."""
        return RequestIds(super().build_middleware_stack())

    def openapi(self) -> dict[str, Any]:
        needs_key = self._needs_key()
        if needs_key not in self._pages:
            public_paths = self._public_paths if needs_key else None
            self._pages[needs_key] = _completed(copy.deepcopy(super().openapi()), public_paths)
        return self._pages[needs_key]


def _completed(page: dict[str, Any], public_paths: Collection[str] | None) -> dict[str, Any]:
    """``public_paths`` is None where no path needs a key."""
    components = page.setdefault("components", {})
    schemas = struct_schemas(STRUCTS) | components.get("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):  # FastAPI's, which no route of ours answers with
        schemas.pop(name, None)
    components["schemas"] = _with_whole_limits(dict(sorted(schemas.items())))
    components["securitySchemes"] = _SECURITY_SCHEMES
    for path, operations in page["paths"].items():
        for method, operation in operations.items():
            is_open = public_paths is None or path in public_paths or (method == "get" and path in PUBLIC_GETS)
            _complete(operation, needs_key=not is_open)
    return page


def _complete(operation: dict[str, Any], *, needs_key: bool) -> None:
    """Adds what may be answered before the route sees the request."""
    statuses = {500, 503}
    responses = operation["responses"]
    if f"{_REF}HTTPValidationError" in str(responses.get("422")):  # FastAPI's, where a field can be wrong
        del responses["422"]
        # Routes that tell of 400 themselves answer so also for what is 422 elsewhere.
        statuses |= set() if "400" in responses else {422}
    if "requestBody" in operation:
        statuses |= {400, 408, 413, 415}
    if needs_key:
        statuses |= {401, 403}
        operation["security"] = [{name: []} for name in _SECURITY_SCHEMES]
    everywhere = {str(status): response for status, response in refusals(*statuses).items()}
    operation["responses"] = dict(sorted({**everywhere, **responses}.items()))


def _with_whole_limits(schema: Any) -> Any:
    """FastAPI makes floats of all limits. 2^64 - 1 is the one that a float can't tell."""
    if isinstance(schema, list):
        return [_with_whole_limits(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {key: _with_whole_limits(item) for key, item in schema.items()}
    if schema.get("type") == "integer":
        for key in _LIMITS & schema.keys():
            schema[key] = min(int(schema[key]), MAX_UINT64)
    return schema


def struct_schemas(structs: Sequence[type], ref: str = _REF) -> dict[str, Any]:
    """By name, with those that they refer to."""
    _, schemas = msgspec.json.schema_components(structs, ref_template=ref + "{name}")
    by_name = {struct.__name__: struct for struct in structs}
    return {name: _as_object(schema, by_name.get(name)) for name, schema in schemas.items()}


def _as_object(schema: dict[str, Any], struct: type | None) -> dict[str, Any]:
    """With a clean description, and with names where msgspec has positions."""
    if "description" in schema:
        schema = {**schema, "description": inspect.cleandoc(schema["description"])}
    if struct is None or not issubclass(struct, msgspec.Struct) or "prefixItems" not in schema:
        return schema
    names = struct.__struct_fields__
    of_positions = [{key: value for key, value in item.items() if key != "default"} for item in schema["prefixItems"]]
    properties = dict(zip(names, of_positions, strict=True))
    described = {key: text for key, text in schema.items() if key in ("title", "description")}
    return {**described, "type": "object", "properties": properties, "required": list(names)}
