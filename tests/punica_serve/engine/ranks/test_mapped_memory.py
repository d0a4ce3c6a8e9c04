"""Which ranks can map memory together, and how long a mapping waits. The mapping itself needs GPUs."""

import time
from datetime import timedelta

import pytest
from torch._C._distributed_c10d import PrefixStore

from punica_serve.engine.ranks.mapped_memory import _timeout, mapping_fault, timeout_of
from punica_serve.engine.ranks.rendezvous import open_port


@pytest.mark.parametrize("counts", [[0, 0], [2, 2, 2]])
def test_processes_that_have_mapped_equally_often_can_map_together(counts: list[int]) -> None:
    assert mapping_fault(counts) is None


@pytest.mark.parametrize(("counts", "rank"), [([2, 0], 0), ([0, 0, 1, 0], 2)])
def test_one_that_was_in_an_earlier_group_can_not(counts: list[int], rank: int) -> None:
    assert (mapping_fault(counts) or "").startswith(f"the process of rank {rank} has been in an earlier group")


def test_the_waits_of_a_mapping_end_by_its_own_deadline() -> None:
    """Torch waits at a store that is made from the one at which the ranks have met."""
    store = open_port("127.0.0.1", 300.0)
    of_group = PrefixStore("default_pg/", store)
    started_s = time.monotonic()
    with pytest.raises(RuntimeError, match="timeout"), _timeout(store, 0.1):
        of_group.wait(["CUDASymmetricMemory/6/1"])
    assert time.monotonic() - started_s < 10.0
    assert timeout_of(store) == timeout_of(of_group) == timedelta(seconds=300)
