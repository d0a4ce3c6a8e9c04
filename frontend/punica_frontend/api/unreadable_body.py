"""Says why a body can't be read as JSON, and where."""

import json

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from punica_frontend.api.json_request import TooManyStrings


def not_json(error: RequestValidationError) -> str:
    """Describes a syntax error, which Python's parser has found."""
    cause = error.__cause__
    assert isinstance(cause, json.JSONDecodeError)
    # Some of the parser's messages end in "at".
    return f"the body is not JSON: {cause.msg.removesuffix(' at')} at line {cause.lineno} column {cause.colno}"


def what_failed(error: HTTPException) -> str:
    """Describes an HTTPException. The framework raises 400 for every unexpected parser error, with its cause."""
    if error.status_code != 400:
        return str(error.detail)
    return f"the body can't be read: {_reason_of(error.__cause__)}"


def _reason_of(cause: BaseException | None) -> str:
    match cause:
        case TooManyStrings():
            return str(cause)
        case UnicodeDecodeError():
            return f"it is not UTF-8 at byte {cause.start}"
        case RecursionError():
            return "it is nested too deeply"
        case ValueError():
            return "a number in it has too many digits"
        case _:
            return "it must be JSON in UTF-8"
