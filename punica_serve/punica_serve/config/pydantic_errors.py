"""Chooses the most useful of pydantic's errors."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

#: Pydantic's type of error for an unknown key.
UNKNOWN = "extra_forbidden"

Error = TypeVar("Error", bound=Mapping[str, Any])


def most_telling(errors: Sequence[Error]) -> Error:
    """The error to show first: an unknown key, since a missing key is usually a misspelt one."""
    return next((error for error in errors if error["type"] == UNKNOWN), errors[0])
