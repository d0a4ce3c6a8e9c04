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
    OutOfCapacity: 429,
    ClusterUnavailable: 503,
    RequestFailed: 500,
    PunicaError: 500,
}

#: OpenAI's ``type`` of each status.
_TYPES = {404: "not_found_error", 429: "rate_limit_error", 500: "server_error", 503: "service_unavailable_error"}

#: When to try again, where trying again may help.
_RETRY_AFTER_S = {429: 1, 503: 2}

#: Kinds of errors that come over the wire by their code.
_BY_CODE: dict[str, type[PunicaError]] = {
    kind.code: kind
    for kind in (InvalidRequest, AdapterRejected, AdapterNotFound, OutOfCapacity, ClusterUnavailable, RequestFailed)
}


def status_of(error: PunicaError) -> int:
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)


def error_object(error: Exception) -> dict[str, Any]:
    """The inner object of an error answer or event. Of what is not a PunicaError it tells nothing: that is our bug."""
    if isinstance(error, PunicaError):
        return _error_object(status_of(error), error.message, param=error.param, code=error.code)
    return _error_object(500, "internal error; the frontend's log says more", code=PunicaError.code)


def from_wire(error: WireError) -> PunicaError:
    """The error that the scheduler ended a request with."""
    return _BY_CODE.get(error.code, RequestFailed)(error.message, param=error.param)


def invalid_fields(errors: Sequence[Mapping[str, Any]]) -> InvalidRequest:
    """An error that names the first wrong field, from pydantic's list of all."""
    first = errors[0]
    param = ".".join(str(part) for part in first["loc"]) or None
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    name = f"`{param}`: " if param else ""
    got = "" if first["type"] in ("missing", "extra_forbidden") else f", got {reprlib.repr(first['input'])}"
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
    return _answer(status_of(error), error_object(error))


def _answer_validation_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    # The first part of a location says that the field is in the body, or in the query.
    errors = [{**entry, "loc": entry["loc"][1:]} for entry in error.errors()]
    if errors[0]["type"] == "json_invalid":
        reason = f"{errors[0]['ctx']['error']} at character {errors[0]['loc'][0]}"
        return _answer(400, error_object(InvalidRequest(f"the body is not JSON: {reason}")))
    if errors[0]["loc"] == ():
        message = "the body must be a JSON object, sent with Content-Type: application/json"
        return _answer(422, error_object(InvalidRequest(message)))
    return _answer(422, error_object(invalid_fields(errors)))


def _answer_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status, code, message = error.status_code, InvalidRequest.code, str(error.detail)
    if status == 404:
        code, message = "route_not_found", f"there is no route {request.method} {request.url.path}; GET /docs lists all"
    elif status == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        code, message = "method_not_allowed", f"{request.url.path} takes {allowed}, not {request.method}"
    elif status == 400:
        message = "the body is not JSON in UTF-8"
    return _answer(status, _error_object(status, message, code=code), error.headers)


def _answer_unexpected(_: Request, error: Exception) -> Response:
    # Starlette raises it again for the server to log with its traceback.
    return _answer(500, error_object(error))
