"""FastAPI still makes its validators where our tests share them."""

import fastapi
from fastapi import FastAPI, Query

from shared_type_adapters import shared_type_adapters


def _application() -> None:
    app = FastAPI()

    @app.get("/")
    async def read(limit: int = Query(1, le=3)) -> None:
        """A route with a parameter."""


def test_only_the_first_application_makes_validators() -> None:
    with shared_type_adapters() as made:
        _application()
        num_made = len(made)
        assert num_made, f"FastAPI {fastapi.__version__} makes its validators elsewhere than `fastapi._compat.v2`"
        _application()
        assert len(made) == num_made
