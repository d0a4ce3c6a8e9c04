"""Applications whose routes share the validators of equal parameters: the only module that touches FastAPI's inside.

Written for FastAPI 0.115 to 0.165, which have no setting for it. tests/frontend/test_shared_type_adapters.py fails for
a version that makes its validators elsewhere.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, get_args
from unittest.mock import patch

from fastapi._compat import v2
from pydantic import TypeAdapter
from pydantic.fields import FieldInfo


@contextmanager
def shared_type_adapters() -> Iterator[dict[object, TypeAdapter[Any]]]:
    """FastAPI makes a validator for each parameter of each route, in half of the time that an application takes.

    Applications of one process have the same ones, so that only the first makes them. Yields those that were made.
    """
    made: dict[object, TypeAdapter[Any]] = {}

    def shared(annotated: Any, **options: Any) -> TypeAdapter[Any]:
        annotation, *metadata = get_args(annotated)
        told = (FieldInfo.__repr__(part) if isinstance(part, FieldInfo) else repr(part) for part in metadata)
        key = (annotation, *told, repr(options))
        if key not in made:
            made[key] = TypeAdapter(annotated, **options)
        return made[key]

    with patch.object(v2, "TypeAdapter", shared):
        yield made
