import gc
from collections.abc import Iterator

import pytest

from punica_serve.collector import calm, calm_collector, leave_alone_what_is_there


@pytest.fixture(autouse=True)
def as_a_process_begins() -> Iterator[None]:
    """Whatever other tests of this process have left behind."""
    thresholds = gc.get_threshold()
    gc.unfreeze()
    gc.set_threshold(700, 10, 10)
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


def test_it_is_calm_for_a_while_and_then_as_before() -> None:
    before = gc.get_threshold()
    with calm():
        assert gc.get_threshold() != before and gc.get_freeze_count()
    assert gc.get_threshold() == before and not gc.get_freeze_count()
