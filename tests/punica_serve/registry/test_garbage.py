"""Statements leave no copies of tables, large cycles of objects, to the garbage collector of a frontend."""

import gc

import pytest
from sqlalchemy import Alias

from punica_serve.registry.records import Usage
from punica_serve.registry.registry import Registry

pytestmark = pytest.mark.anyio


@pytest.mark.usefixtures("no_collections")
async def test_statements_that_run_again_and_again_copy_no_table(registry: Registry) -> None:
    async def all_of_them(number: int) -> None:
        await registry.unused_files()
        assert await registry.claim_files("a", "w1")
        row = Usage(7200, "default", "default", None, None, None, 1, 10, 4, 20, 0.5)
        await registry.add_usage([row], source="f1", number=number)

    await all_of_them(1)
    before = _num_copies()
    for number in range(2, 5):
        await all_of_them(number)
    assert _num_copies() == before


def _num_copies() -> int:
    # Not isinstance: it asks objects for their class, and deprecated ones warn when asked.
    return sum(issubclass(type(each), Alias) for each in gc.get_objects())
