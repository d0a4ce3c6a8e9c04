"""Bodies that can't be read as JSON: what is wrong with them, and where."""

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException


def not_json(error: RequestValidationError) -> str:
    """Of a body that a parser gave up on. pydantic's says the place itself; the framework's counts characters."""
    first = error.errors()[0]
    reason, position = first["ctx"]["error"], first["loc"][1:]
    place = _place_in(error.body, *position) if position else ""
    # Some of the framework's reasons end with the word that the place begins with.
    return f"the body is not JSON: {reason.removesuffix(' at')}{place}"


def what_failed(error: HTTPException) -> str:
    """The framework tells of all that no parser was prepared for in one way: 400, with what it was behind it."""
    if error.status_code != 400:
        return str(error.detail)
    return f"the body can't be read: {_reason_of(error.__cause__)}"


def _place_in(document: str, position: int) -> str:
    line, column = document.count("\n", 0, position) + 1, position - document.rfind("\n", 0, position)
    return f" at line {line} column {column}"


def _reason_of(cause: BaseException | None) -> str:
    match cause:
        case UnicodeDecodeError():
            return f"it is not UTF-8 at byte {cause.start}"
        case RecursionError():
            return "it is nested too deeply"
        case ValueError():
            return "a number in it has too many digits"
        case _:
            return "it must be JSON in UTF-8"
