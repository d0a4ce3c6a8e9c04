import gc
from collections.abc import Iterator

import pytest

from punica_serve.collector import calm_collector, leave_alone_what_is_there


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


def test_what_is_there_is_looked_at_no_more_and_what_comes_is() -> None:
    there: list[object] = [[]]
    leave_alone_what_is_there()
    comes: list[object] = [[]]
    seen = {id(thing) for thing in gc.get_objects()}
    assert id(there) not in seen and id(comes) in seen
    assert gc.get_freeze_count() > 10_000, "the modules"


def test_a_calm_collector_looks_less_often_too() -> None:
    before = gc.get_threshold()
    calm_collector()
    assert all(calm > usual for calm, usual in zip(gc.get_threshold(), before, strict=True) if usual)
