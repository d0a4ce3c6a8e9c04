"""The memory that a worker and its CPU processes share."""

import pytest
import torch

from punica_kernels.exchange_words import DEAD, MAX_PROCESSES
from punica_serve.engine.cpu_assist.exchange_memory import (
    ExchangeMemory,
    ExchangeShape,
    GroupShape,
    GroupWeights,
    JobWords,
    exchange_num_bytes,
)

_SHAPE = ExchangeShape("float32", 3, (GroupShape("qkv", 16, (0, 16, 24, 32)), GroupShape("down", 40, (0, 16))), 5)


def _memory() -> ExchangeMemory:
    return ExchangeMemory(torch.zeros(exchange_num_bytes(_SHAPE), dtype=torch.uint8), _SHAPE)


def test_a_job_is_read_as_it_was_written_and_its_end_stays() -> None:
    memory = _memory()
    memory.end_job(6)
    job = JobWords(7, 5, (0, 4, 31), (GroupWeights(256, 512, 2), GroupWeights()))
    memory.write_job(job)
    assert memory.read_job() == job
    assert memory.ended_key == 6


def test_parts_do_not_overlap() -> None:
    memory = _memory()
    memory.x.fill_(1.0)
    memory.v.fill_(6.0)
    memory.delta.fill_(2.0)
    memory.sent.fill_(3)
    memory.failed.fill_(4)
    memory.done.fill(5)
    memory.pids.fill(7)
    memory.left.fill(8)
    memory.shrunk.fill(9)
    for number, words in enumerate((memory.pids, memory.left, memory.shrunk), start=7):
        assert words.tolist() == [number] * MAX_PROCESSES
    assert memory.done_words.tolist() == [5] * MAX_PROCESSES
    assert memory.x.eq(1.0).all() and memory.v.eq(6.0).all() and memory.delta.eq(2.0).all()
    assert memory.sent.eq(3).all()
    assert memory.failed.item() == 4 and memory.read_job().key == 0 and len(memory.sent) == _SHAPE.num_exchanges
    assert memory.rows_of_x(1, 5).shape == (5, 40) and memory.rows_of_delta(0, 5).shape == (5, 32)
    assert memory.columns_of_v(0, 16, 5).shape == (3 * 128, 5), "the highest rank that processes help with"


@pytest.mark.parametrize(("pid", "is_lost"), [(0, True), (4321, False), (DEAD, True)])
def test_a_job_has_lost_processes_that_have_no_number_any_more(pid: int, is_lost: bool) -> None:
    memory = _memory()
    memory.pids[[1, 31]] = 1234
    memory.pids[31] = pid
    assert memory.has_lost((1, 31)) is is_lost
    assert not memory.has_lost((1,))
