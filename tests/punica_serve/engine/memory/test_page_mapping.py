"""Memory that is mapped ahead of its use takes no page faults."""

import mmap
import os
import resource
import sys

import pytest
import torch

from punica_serve.engine.memory.page_mapping import map_pages

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems map no memory ahead")


def test_mapped_memory_is_read_and_written_without_page_faults() -> None:
    num_bytes, part_bytes = (32 << 20) + mmap.PAGESIZE, 1 << 20
    fd = os.memfd_create("test")
    os.ftruncate(fd, num_bytes)
    torch.frombuffer(mmap.mmap(fd, 0), dtype=torch.uint8).fill_(1)
    memory = torch.frombuffer(mmap.mmap(fd, 0), dtype=torch.uint8)
    os.close(fd)
    assert len(list(map_pages(memory.data_ptr(), num_bytes, part_bytes))) == 33
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    assert memory[:: mmap.PAGESIZE].max() == 1
    memory[:: mmap.PAGESIZE] = 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 100


def test_it_ends_where_the_system_can_not() -> None:
    assert not list(map_pages(mmap.PAGESIZE, mmap.PAGESIZE, mmap.PAGESIZE)), "nothing is mapped there"
