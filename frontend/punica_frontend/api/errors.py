"""Errors as clients see them: one shape, OpenAI's, and one table of HTTP statuses."""

import json
import logging
import math
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Receive, Scope, Send

from punica_frontend.api.field_names import nearest
from punica_frontend.api.schemas import NOT_UNICODE, ErrorObject
from punica_frontend.api.unreadable_body import not_json, what_failed
from punica_serve import errors as error_kinds
from punica_serve.config.pydantic_errors import UNKNOWN, most_telling
from punica_serve.errors import (
    AdapterNotFound,
    AdapterRejected,
    ClusterUnavailable,
    Conflict,
    Forbidden,
    GpuNotFound,
    InvalidRequest,
    NotFound,
    OutOfCapacity,
    PunicaError,
    RegistryUnavailable,
    RequestFailed,
    TooLarge,
    Unauthorized,
)
from punica_serve.errors.shortened import shortened
from punica_serve.process.logs import REQUEST_ID
from punica_serve.protocol import WireError

log = logging.getLogger(__name__)


class SlowReader(OutOfCapacity):
    """A client reads its answers too slowly, and too much output is waiting for it."""

    code = "slow_reader"


#: The HTTP status of each kind of PunicaError that can reach a client; other kinds take their nearest base's.
STATUS: dict[type[PunicaError], int] = {
    InvalidRequest: 400,
    AdapterRejected: 400,
    Unauthorized: 401,
    Forbidden: 403,
    NotFound: 404,
    AdapterNotFound: 404,
    GpuNotFound: 404,
    Conflict: 409,
    TooLarge: 413,
    OutOfCapacity: 429,
    ClusterUnavailable: 503,
    RequestFailed: 500,
    PunicaError: 500,
}

#: OpenAI's ``type`` for each status.
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "service_unavailable_error",
}

#: Error codes for statuses without a PunicaError; the others are InvalidRequest's.
_CODES = {404: "route_not_found", 405: "method_not_allowed", 408: "request_timeout", 500: PunicaError.code}

#: Methods that routes may have.
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")

#: pydantic's error types for a body that is missing or is no object.
_NOT_AN_OBJECT = ("missing", "model_attributes_type")
#: Its error types for a field, or an item of a list, that is no object; its own messages name our classes.
_NO_OBJECT = ("dict_type", "model_attributes_type", "model_type")

#: Default seconds for ``Retry-After``, where trying again may help. Nobody knows when the cause of a 503 ends: it may
#: be at once, and a frontend itself looks for its registry at least every 2 s.
RETRY_AFTER_S = {429: 1, 503: 2}

#: Error classes by their wire codes.
_BY_CODE: dict[str, type[PunicaError]] = {
    kind.code: kind
    for kind in (*vars(error_kinds).values(), SlowReader)
    if isinstance(kind, type) and issubclass(kind, PunicaError)
}


def status_of(error: PunicaError) -> int:
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)


def error_object(error: Exception) -> ErrorObject:
    """Returns the inner object of an error answer or event. Errors other than PunicaError reveal nothing."""
    if isinstance(error, PunicaError):
        return _error_object(status_of(error), error.message, param=error.param, code=error.code)
    return _error_object(500, "internal error; see the frontend's log", code=PunicaError.code)


def answer_of(error: PunicaError) -> Response:
    """Returns the whole HTTP answer."""
    headers = None if error.retry_after_s is None else {"Retry-After": str(max(1, math.ceil(error.retry_after_s)))}
    if isinstance(error, Unauthorized):
        headers = {"WWW-Authenticate": "Bearer"}
    return _answer(status_of(error), error_object(error), headers)


def log_for_operator(error: PunicaError) -> None:
    """Logs which database is unavailable and why, which the client does not learn."""
    if isinstance(error, RegistryUnavailable):
        log.warning("a request failed: %s", error)


def refusal_of(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """Answers a request that matched no route or can't be read."""
    return _answer(status, _error_object(status, message, code=_CODES.get(status, InvalidRequest.code)), headers)


def from_wire(error: WireError) -> PunicaError:
    """Returns the error with which the scheduler ended a request or replied to a call."""
    kind = _BY_CODE.get(error.code, RequestFailed)
    return kind(error.message, param=error.param, retry_after_s=error.retry_after_s)


def invalid_field(first: Mapping[str, Any], path: Sequence[int | str], num_errors: int) -> InvalidRequest:
    """Returns an error about a wrong field: pydantic's ``first`` of ``num_errors``, at ``path`` of the document."""
    param = shortened(".".join(map(str, path))) or None
    name = f"`{param}`: " if param else ""
    wrong = _wrong(first, path)
    got = "" if first["type"] in ("missing", UNKNOWN) else f", got {_shown(first['input'])}"
    more = f" (and {num_errors - 1} more)" if num_errors > 1 else ""
    return InvalidRequest(f"{name}{wrong}{got}{_misspelt(first, path)}{more}", param=param)


def _wrong(first: Mapping[str, Any], path: Sequence[int | str]) -> str:
    """Says what is wrong. A text's length that is checked after a validator is of "items" in pydantic's words."""
    if first["type"] == UNKNOWN:
        near = first.get("ctx", {}).get("near")
        advice = f"did you mean `{'.'.join(map(str, [*path[:-1], near]))}`? " if near else ""
        return f"there is no such field; {advice}/docs lists all fields"
    if first["type"] == NOT_UNICODE:  # pydantic's own message is about bytes that were parsed long before
        return f"{'Input' if path else 'The name of a field'} should be valid Unicode, without lone surrogates"
    if first["type"] in _NO_OBJECT:
        return "Input should be an object"
    message = str(first["msg"])
    if first["type"] in ("too_short", "too_long"):
        message = message.replace(" after validation", "")  # ours, which a client knows nothing of
        if isinstance(first["input"], str):
            return message.replace("Value", "String").replace(" item", " character")
    return message


def _misspelt(first: Mapping[str, Any], path: Sequence[int | str]) -> str:
    """Suggests which of the given fields may be the missing one."""
    if first["type"] != "missing" or not isinstance(sent := first["input"], dict):
        return ""
    near = nearest(str(path[-1]), sent)
    return f"; did you mean it by `{near}`?" if near else ""


def _shown(value: object) -> str:
    """Returns the value as its sender wrote it, shortened."""
    return json.dumps(value) if value is None or isinstance(value, bool) else reprlib.repr(value)


def error_of_body(error: RequestValidationError | HTTPException) -> InvalidRequest:
    """Returns one error that says what is wrong with a body: which field, or why none could be read."""
    if isinstance(error, HTTPException):
        return InvalidRequest(what_failed(error))
    errors = error.errors()
    first = most_telling(errors)
    if first["type"] == "json_invalid":
        return InvalidRequest(not_json(error))
    if first["loc"] == ("body",) and first["type"] in _NOT_AN_OBJECT:
        return InvalidRequest("the body must be a JSON object, sent with Content-Type: application/json")
    # The first part of a location is "body" or "query".
    return invalid_field(first, first["loc"][1:], len(errors))


def install_error_handlers(app: FastAPI) -> None:
    """Makes ``app`` answer every error in the one shape.

    Handlers that are no coroutines would run in threads, each of which keeps its last error, and the body in it.
    """
    app.add_exception_handler(PunicaError, _answer_punica_error)
    app.add_exception_handler(RequestValidationError, _answer_validation_error)
    app.add_exception_handler(HTTPException, _answer_http_exception)
    app.add_exception_handler(Exception, _answer_unexpected)
    app.router.default = _not_found


def _error_object(status: int, message: str, *, code: str, param: str | None = None) -> ErrorObject:
    return {"message": message, "type": _TYPES.get(status, "invalid_request_error"), "param": param, "code": code}


def _answer(status: int, error: ErrorObject, headers: Mapping[str, str] | None = None) -> JSONResponse:
    if status in RETRY_AFTER_S:
        headers = {"Retry-After": str(RETRY_AFTER_S[status]), **(headers or {})}
    return JSONResponse({"error": error, "request_id": REQUEST_ID.get()}, status, headers)


async def _answer_punica_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, PunicaError)
    log_for_operator(error)
    return answer_of(error)


async def _answer_validation_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    is_json = error.errors()[0]["type"] != "json_invalid"
    return _answer(422 if is_json else 400, error_object(error_of_body(error)))


async def _answer_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status, message, headers = error.status_code, what_failed(error), error.headers
    method, path = shortened(request.method), shortened(request.url.path)
    if status == 404:
        message = f"there is no route {method} {path}; /docs lists all routes"
        if _is_websocket(request):
            message = f"{path} is a websocket: open it as one, with ws:// or wss://"
    elif status == 405:
        allowed = _allowed_methods(request)
        message, headers = f"{path} takes {allowed}, not {method}", {"Allow": allowed}
    return refusal_of(status, message, headers)


def _is_websocket(request: Request) -> bool:
    scope = {**request.scope, "type": "websocket"}
    return any(route.matches(scope)[0] is Match.FULL for route in request.app.routes)


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers paths without a route. By default a websocket would be refused without a reason."""
    if scope["type"] != "websocket":
        raise HTTPException(404)
    message = f"there is no websocket {shortened(scope['path'])}; docs/api.md lists all of them"
    await refusal_of(404, message)(scope, receive, send)


def _allowed_methods(request: Request) -> str:
    """Returns the methods of all routes with this path; the framework returns only the first route's."""

    def is_taken(method: str) -> bool:
        scope = {**request.scope, "method": "GET" if method == "HEAD" else method}
        return any(route.matches(scope)[0] is Match.FULL for route in request.app.routes)

    return ", ".join(filter(is_taken, METHODS))


async def _answer_unexpected(_: Request, error: Exception) -> Response:
    # Starlette raises it again, and the server logs it with its traceback.
    return _answer(500, error_object(error))
