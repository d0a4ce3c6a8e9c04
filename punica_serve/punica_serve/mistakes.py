"""Which of pydantic's errors tells a user most."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

#: What pydantic calls a key that nobody knows.
UNKNOWN = "extra_forbidden"

Error = TypeVar("Error", bound=Mapping[str, Any])


def most_telling(errors: Sequence[Error]) -> Error:
    """An unknown key before all others: where one is missing, a misspelt one is most often what is wrong."""
    return next((error for error in errors if error["type"] == UNKNOWN), errors[0])
