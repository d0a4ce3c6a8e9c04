"""What clients see of errors: one shape, OpenAI's, and one table of HTTP statuses.

{"error": {"message": str, "type": str, "param": str or null, "code": str}}
"""

import logging
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.responses import Response

from punica_serve.errors import (
    AdapterNotFound,
    AdapterRejected,
    ClusterUnavailable,
    GpuNotFound,
    InvalidRequest,
    OutOfCapacity,
    PunicaError,
    RequestFailed,
)
from punica_serve.protocol import WireError

log = logging.getLogger(__name__)

#: The HTTP status of each kind of PunicaError that can reach a client; of others, their nearest base's.
STATUS: dict[type[PunicaError], int] = {
    InvalidRequest: 400,
    AdapterRejected: 400,
    AdapterNotFound: 404,
    GpuNotFound: 404,
    OutOfCapacity: 429,
    ClusterUnavailable: 503,
    RequestFailed: 500,
    PunicaError: 500,
}

#: OpenAI's ``type`` of each status.
_TYPES = {404: "not_found_error", 429: "rate_limit_error", 500: "server_error", 503: "service_unavailable_error"}

#: What pydantic calls a body that is not there, or that holds no fields.
_NOT_AN_OBJECT = ("missing", "model_attributes_type")

#: When to try again, where trying again may help.
_RETRY_AFTER_S = {429: 1, 503: 2}

#: Kinds of errors that come over the wire by their code.
_BY_CODE: dict[str, type[PunicaError]] = {
    kind.code: kind
    for kind in (
        InvalidRequest,
        AdapterRejected,
        AdapterNotFound,
        GpuNotFound,
        OutOfCapacity,
        ClusterUnavailable,
        RequestFailed,
    )
}


def status_of(error: PunicaError) -> int:
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)


def error_object(error: Exception) -> dict[str, Any]:
    """The inner object of an error answer or event. Of what is not a PunicaError it tells nothing: that is our bug."""
    if isinstance(error, PunicaError):
        return _error_object(status_of(error), error.message, param=error.param, code=error.code)
    return _error_object(500, "internal error; the frontend's log says more", code=PunicaError.code)


def answer_of(error: PunicaError) -> Response:
    """The whole HTTP answer."""
    return _answer(status_of(error), error_object(error))


def from_wire(error: WireError) -> PunicaError:
    """The error that the scheduler ended a request with, or answered a call."""
    return _BY_CODE.get(error.code, RequestFailed)(error.message, param=error.param)


def invalid_field(first: Mapping[str, Any], path: Sequence[int | str], num_errors: int) -> InvalidRequest:
    """An error that names a wrong field: pydantic's ``first`` of ``num_errors``, at ``path`` in what was sent."""
    param = ".".join(map(str, path)) or None
    name = f"`{param}`: " if param else ""
    got = "" if first["type"] in ("missing", "extra_forbidden") else f", got {reprlib.repr(first['input'])}"
    more = f" (and {num_errors - 1} more)" if num_errors > 1 else ""
    return InvalidRequest(f"{name}{first['msg']}{got}{more}", param=param)


def install_error_handlers(app: FastAPI) -> None:
    """Makes every error of ``app`` an answer of the one shape."""
    app.add_exception_handler(PunicaError, _answer_punica_error)
    app.add_exception_handler(RequestValidationError, _answer_validation_error)
    app.add_exception_handler(HTTPException, _answer_http_exception)
    app.add_exception_handler(Exception, _answer_unexpected)


def _error_object(status: int, message: str, *, code: str, param: str | None = None) -> dict[str, Any]:
    return {"message": message, "type": _TYPES.get(status, "invalid_request_error"), "param": param, "code": code}


def _answer(status: int, error: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> JSONResponse:
    if status in _RETRY_AFTER_S:
        headers = {**(headers or {}), "Retry-After": str(_RETRY_AFTER_S[status])}
    return JSONResponse({"error": error}, status, headers)


def _answer_punica_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, PunicaError)
    return answer_of(error)


def _answer_validation_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    errors = error.errors()
    first = errors[0]
    if first["type"] == "json_invalid":
        reason = f"{first['ctx']['error']} at character {first['loc'][-1]}"
        return _answer(400, error_object(InvalidRequest(f"the body is not JSON: {reason}")))
    if first["loc"] == ("body",) and first["type"] in _NOT_AN_OBJECT:
        message = "the body must be a JSON object, sent with Content-Type: application/json"
        return _answer(422, error_object(InvalidRequest(message)))
    # The first part of a location says that the field is in the body, or in the query.
    return _answer(422, error_object(invalid_field(first, first["loc"][1:], len(errors))))


def _answer_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status, code, message = error.status_code, InvalidRequest.code, str(error.detail)
    if status == 404:
        code, message = "route_not_found", f"there is no route {request.method} {request.url.path}; GET /docs lists all"
    elif status == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        code, message = "method_not_allowed", f"{request.url.path} takes {allowed}, not {request.method}"
    elif status == 400:
        message = "the body can't be read: not UTF-8, not JSON, nested too deeply, or a number too long"
    return _answer(status, _error_object(status, message, code=code), error.headers)


def _answer_unexpected(_: Request, error: Exception) -> Response:
    # Starlette raises it again for the server to log with its traceback.
    return _answer(500, error_object(error))
