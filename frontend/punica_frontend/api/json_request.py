"""Requests whose JSON is parsed in a third of the time and checked as FastAPI does, and whose memory is bounded."""

import json
from typing import Any, TypeVar

import msgspec
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

B = TypeVar("B", bound=BaseModel)

#: The most strings in a body, names of fields included. A chat of 4,096 messages has a third as many.
MAX_STRINGS = 65_536


class TooManyStrings(Exception):
    """A body has more strings than any request needs."""

    def __init__(self) -> None:
        super().__init__(f"it has more than {MAX_STRINGS} strings")


class JsonRequest(Request):
    """A request that decodes its body with ``parsed``."""

    async def json(self) -> Any:
        """Returns the parsed body. Raises as ``parsed`` does."""
        return parsed(await self.body())

    async def checked(self, kind: type[B]) -> B:
        """Returns the body. Raises what FastAPI would: RequestValidationError, or HTTPException if it is unreadable."""
        try:
            body = await self.body()
        except HTTPException:
            raise
        except Exception as error:
            raise HTTPException(400) from error
        # A page of another site may send a body unasked, but does not call it JSON.
        is_document = body and is_json(self.headers.get("content-type", ""))
        return checked(kind, document_of(body) if is_document else body)


def parsed(body: bytes) -> Any:
    """Parses JSON with msgspec.

    What msgspec refuses goes to Python's parser: it accepts some bodies, such as lone surrogates and UTF-16, and says
    of the others where they end to be JSON. Raises TooManyStrings before anything is parsed; ValueError or
    RecursionError for a body that is not JSON.
    """
    if len(body) > MAX_STRINGS and _num_unescaped_quotes(body) > 2 * MAX_STRINGS:
        raise TooManyStrings
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return json.loads(body)


def document_of(body: bytes) -> Any:
    """Parses JSON. Raises what FastAPI would: RequestValidationError, or HTTPException if it is unreadable."""
    try:
        return parsed(body)
    except json.JSONDecodeError as error:
        invalid = {"type": "json_invalid", "loc": ("body", error.pos), "msg": "JSON decode error", "input": {}}
        raise RequestValidationError([{**invalid, "ctx": {"error": error.msg}}], body=error.doc) from error
    except Exception as error:
        raise HTTPException(400) from error


def checked(kind: type[B], document: Any) -> B:
    """Checks a parsed body. Raises RequestValidationError, as FastAPI does."""
    try:
        return kind.model_validate(document, from_attributes=True)
    except ValidationError as error:
        errors = [{**each, "loc": ("body", *each["loc"])} for each in error.errors(include_url=False)]
        raise RequestValidationError(errors, body=document) from None


def _num_unescaped_quotes(body: bytes) -> int:
    """Returns how many quotes do not follow a backslash: at least one of each string, at most two.

    A string such as "4" takes 64 bytes of memory for 4 of the body, so the bytes alone bound little. Escaped quotes,
    which are text, follow a backslash; so may the end of a string, but never its beginning.
    """
    return body.count(b'"') - body.count(b'\\"')


def is_json(content_type: str) -> bool:
    """Whether a Content-Type names JSON, or a format that is written in it."""
    kind, _, name = content_type.partition(";")[0].strip().lower().partition("/")
    return kind == "application" and (name == "json" or name.endswith("+json"))
