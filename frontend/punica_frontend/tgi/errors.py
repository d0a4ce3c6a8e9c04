"""Errors in LoRAX's and TGI's shape: {"error": str, "error_type": str}, and their statuses."""

from collections.abc import Iterator
from contextlib import contextmanager

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response
from typing_extensions import TypedDict

from punica_frontend.api.errors import answer_of, error_object, status_of
from punica_frontend.openai.error_terms import renamed
from punica_serve.errors import (
    AdapterNotFound,
    AdapterRejected,
    ClusterUnavailable,
    InvalidRequest,
    OutOfCapacity,
    PunicaError,
    RequestFailed,
)

#: Status and type of each kind of error; other kinds take their nearest base's. Unlike in LoRAX, not found is 404.
_KINDS: dict[type[PunicaError], tuple[int, str]] = {
    InvalidRequest: (422, "validation"),
    AdapterNotFound: (404, "not_found"),
    AdapterRejected: (424, "generation"),
    RequestFailed: (424, "generation"),
    OutOfCapacity: (429, "overloaded"),
    ClusterUnavailable: (503, "unavailable"),
}

#: LoRAX's and TGI's names for fields of the native API.
_NAMES = {
    "lora_id": "parameters.adapter_id",
    "prompt": "inputs",
    "input_ids": "inputs",
    "max_tokens": "parameters.max_new_tokens",
    "n": "parameters.best_of",
    "slo": "parameters.slo",
}


class TgiErrorBody(TypedDict):
    """An error in LoRAX's and TGI's format."""

    error: str
    error_type: str


class TgiError(PunicaError):
    """``cause`` in the terms of LoRAX and TGI."""

    def __init__(self, cause: PunicaError) -> None:
        cause = renamed(cause, _NAMES)
        super().__init__(cause.message, param=cause.param, retry_after_s=cause.retry_after_s)
        self.cause = cause


def install_tgi_errors(app: FastAPI) -> None:
    app.add_exception_handler(TgiError, _answer)


@contextmanager
def tgi_terms() -> Iterator[None]:
    """Raises errors as TgiErrors."""
    try:
        yield
    except PunicaError as error:
        raise TgiError(error) from error


def error_event(error: Exception) -> TgiErrorBody:
    """Returns the event that ends a failed stream."""
    if isinstance(error, TgiError):
        return _body(error)
    return {"error": error_object(error)["message"], "error_type": "generation"}


async def _answer(_: Request, error: Exception) -> Response:
    assert isinstance(error, TgiError)
    retry_after = answer_of(error.cause).headers.get("retry-after")
    return JSONResponse(_body(error), _kind(error)[0], {"Retry-After": retry_after} if retry_after else None)


def _body(error: TgiError) -> TgiErrorBody:
    return {"error": error.message, "error_type": _kind(error)[1]}


def _kind(error: TgiError) -> tuple[int, str]:
    kinds = (_KINDS[kind] for kind in type(error.cause).__mro__ if kind in _KINDS)
    return next(kinds, (status_of(error.cause), "generation"))
