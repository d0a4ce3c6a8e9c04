"""The ways of a row from queue to queue, with pages and adapters audited after each."""

from typing import Any

import pytest

from punica_serve.protocol import AdapterRef
from punica_serve.simulation.row import Row
from punica_serve.simulation.row_queues import RowQueues
from simulated_gpus import VOCAB_SIZE, adapter_ref, gpu_info, make_request, round_profile


def _queues(**sizes: Any) -> RowQueues:
    return RowQueues(gpu_info(**sizes), round_profile().adapter_load, vocab_size=VOCAB_SIZE)


def _add(queues: RowQueues, number: int, num_prompt: int = 5, adapter: AdapterRef | None = None) -> Row:
    row = Row.of(number, make_request(number, num_prompt, adapter=adapter), VOCAB_SIZE)
    queues.add(row, 0.0)
    return row


def _decode(queues: RowQueues, row: Row) -> None:
    """Prefills all of a row, and has it decode."""
    assert queues.prefill(row, row.num_uncached)
    row.num_tokens += 1
    queues.decodes.join(row)


def test_a_row_holds_pages_from_its_admission_to_its_end() -> None:
    queues = _queues()
    row = _add(queues, 1)
    assert queues.prefilling() == [row] and queues.pages.num_free == 30
    assert not queues.prefill(row, 4), "a token is left"
    _decode(queues, row)
    assert queues.prefilling() == [] and 1 in queues.decodes
    queues.check_invariants()
    queues.decodes.leave(1)
    queues.drop(row)
    assert len(queues) == 0 and queues.pages.num_free == 32


def test_a_request_that_does_not_fit_blocks_those_behind_it() -> None:
    queues = _queues()
    first, _, small = (_add(queues, number, num_prompt) for number, num_prompt in enumerate((60, 80, 2)))
    queues.check_invariants()
    assert queues.prefilling() == [first]
    queues.cancel(1)
    queues.admit(0.0)
    assert queues.prefilling() == [first, small]


def test_a_request_with_one_token_decodes_once_its_adapter_is_loaded() -> None:
    queues = _queues()
    row = _add(queues, 1, num_prompt=1, adapter=adapter_ref("a"))
    assert queues.join_decodes() == [] and queues.prefilling() == []
    queues.loras.settle(1.0)
    assert queues.join_decodes() == [row] and 1 in queues.decodes
    queues.check_invariants()


@pytest.mark.parametrize("is_decoding", [False, True])
def test_the_newest_running_request_is_preempted_for_pages(is_decoding: bool) -> None:
    queues = _queues(num_kv_pages=4)
    first, newest = _add(queues, 1, num_prompt=7), _add(queues, 2, num_prompt=7)
    _decode(queues, first)
    if is_decoding:
        _decode(queues, newest)
    queues.decodes.advance()
    assert queues.give_pages() == (2,)
    assert newest.num_pages == 0 and queues.prefilling() == []
    queues.decodes.advance()
    queues.check_invariants()


@pytest.mark.parametrize("state", ["waiting", "starting", "decoding"])
def test_a_row_can_be_cancelled_in_each_queue(state: str) -> None:
    queues = _queues(max_batch_size=1)
    if state == "waiting":
        _add(queues, 0)
    row = _add(queues, 1, adapter=adapter_ref("a"))
    if state == "decoding":
        _decode(queues, row)
    queues.cancel(1)
    queues.cancel(1)
    assert len(queues) == (state == "waiting") and queues.pages.num_free == 32 - 2 * len(queues)
    queues.check_invariants()
