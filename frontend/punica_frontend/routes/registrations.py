"""POST /v1/adapters: registers an adapter from a source or an upload."""

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from starlette.requests import ClientDisconnect

from punica_frontend.adapters.bodies import RegisterBody
from punica_frontend.adapters.cards import RegisteredAdapter, registered_card
from punica_frontend.adapters.registration import Registered, Registrar, RegistrationRequest
from punica_frontend.api.caller import Caller, caller_of
from punica_frontend.api.json_request import checked, document_of
from punica_frontend.api.response_docs import json_answer, refusal
from punica_frontend.generation.answers import json_of
from punica_frontend.http.connection import CLIENT_CLOSED, run_while_connected
from punica_serve.errors import InvalidRequest, TooLarge
from punica_serve.store.sources import Sources
from punica_serve.store.upload import Uploads

#: A body that only names a source.
_MAX_JSON_BYTES = 64 << 10

_ARCHIVES = ("application/zip", "application/x-tar", "application/gzip")
_BINARY = {"schema": {"type": "string", "format": "binary"}}
_PARTS = {
    "schema": {
        "type": "object",
        "properties": {
            "adapter_config.json": {"type": "string", "format": "binary"},
            "adapter_model.safetensors": {"type": "string", "format": "binary"},
        },
    }
}
_REQUEST_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": RegisterBody.model_json_schema()},
            "multipart/form-data": _PARTS,
            **dict.fromkeys(_ARCHIVES, _BINARY),
        },
    }
}
_RESPONSES = {
    200: json_answer(RegisteredAdapter, "These bytes are already registered under this name: nothing has changed."),
    201: json_answer(RegisteredAdapter, "Requests for this name now get this version."),
    **refusal(400, "The adapter is invalid, or can't be applied as PEFT does; `param` says where."),
    **refusal(
        403,
        "The name is another tenant's, the source is not allowed, or the tenant's limit is reached.",
    ),
    **refusal(404, "There is no such tenant."),
    **refusal(409, "The config file has this adapter; change it there."),
    **refusal(408, "The body did not arrive in time, or came more slowly than 64 KiB/s."),
    **refusal(413, "The adapter has more bytes than allowed."),
    **refusal(422, "A field is unknown, missing, of the wrong type or out of range."),
    **refusal(429, "Too many adapters are being registered; try again later."),
    **refusal(503, "The registry or the store is down, slow or full; try again later."),
}


def registrations_router(registrar: Registrar, sources: Sources, uploads: Uploads) -> APIRouter:
    router = APIRouter(tags=["adapters"])

    @router.post(
        "/v1/adapters",
        status_code=201,
        summary="Register an adapter",
        responses=_RESPONSES,
        openapi_extra=_REQUEST_BODY,
    )
    async def register(
        request: Request,
        name: Annotated[str | None, Query(description="The name of an upload.")] = None,
        pinned: Annotated[bool, Query(description="For uploads; as in a JSON body.")] = False,
        prefetch: Annotated[bool, Query(description="For uploads; as in a JSON body.")] = False,
    ) -> Response:
        """Takes JSON that names a source, or the files themselves: an archive as the body, or the two files as a form.

        The adapter is validated first. Registering an existing name makes a new version; running requests finish on
        theirs. `shadows` lists what else the short name meant, such as a shared adapter.
        """
        caller = caller_of(request)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "application/json":
            body = await _json_body(request)
            wanted = RegistrationRequest(body.name, body.uri, pinned=body.pinned, prefetch=body.prefetch)
            fetch = partial(sources.fetch, body.uri, is_admin=caller.is_admin)
            registered = await run_while_connected(request.receive, registrar.register(caller, wanted, fetch))
            return _answer(registered, caller)
        if kind not in (*_ARCHIVES, "multipart/form-data"):
            kinds = ", ".join(("application/json", "multipart/form-data", *_ARCHIVES))
            raise InvalidRequest(f"Content-Type is {kind[:100]!r}; it must be one of {kinds}", param="Content-Type")
        if name is None:
            raise InvalidRequest("`name` is missing: give it in the upload's query, as in ?name=roman", param="name")
        wanted = RegistrationRequest(name, pinned=pinned, prefetch=prefetch)
        body_type = request.headers["content-type"]
        upload = partial(uploads.receive, request.stream(), body_type)
        try:
            return _answer(await registrar.register(caller, wanted, upload), caller)
        except ClientDisconnect:
            return _answer(None, caller)

    return router


async def _json_body(request: Request) -> RegisterBody:
    """Raises RequestValidationError and HTTPException, as FastAPI does for bodies that it reads itself."""
    content = bytearray()
    async for chunk in request.stream():
        content += chunk
        if len(content) > _MAX_JSON_BYTES:
            raise TooLarge(f"the body is longer than {_MAX_JSON_BYTES} bytes")
    return checked(RegisterBody, document_of(bytes(content)))


def _answer(registered: Registered | None, caller: Caller) -> Response:
    """``registered`` is None if the client has left."""
    if registered is None:
        return Response(status_code=CLIENT_CLOSED)
    card = registered_card(registered.adapter, caller, registered.shadows)
    return json_of(card, 201 if registered.is_new else 200)
