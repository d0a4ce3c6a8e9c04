"""Rows that go to the host and come back, in Triton's interpreter or on a GPU."""

import pytest
import torch
from torch import Tensor

from punica_kernels.exchange_words import (
    DEAD,
    MAX_PROCESSES,
    NO_ARRIVAL_KEY,
    NUM_STEP_WORDS,
    ExchangeField,
    ExchangeTensors,
    done_word,
)
from punica_kernels.gpu import host_exchange

GPU = torch.device("cuda" if torch.cuda.is_available() else "cpu")
_KEY, _ROWS, _BUCKET_ROWS, _WIDTH, _OUT = 5, 3, 8, 20, 40
_PROCESSES = (0, 2)


def _host(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(*shape, dtype=dtype, pin_memory=GPU.type == "cuda")


def _tensors(**fields: int) -> ExchangeTensors:
    step = torch.zeros(NUM_STEP_WORDS, dtype=torch.int32)
    words = {"KEY": _KEY, "NUM_ROWS": _ROWS, "GROUPS": 0b10, "PROCESSES": 0b101}
    words |= {"MAX_LOOKS": 3, "MAX_LOOKS_FOR_ONE": 100}
    words |= {"ARRIVAL_SLOT": 1, "ARRIVAL_NUMBER": 7}
    for name, value in (words | fields).items():
        step[ExchangeField[name]] = value
    tensors = ExchangeTensors(
        host_x=_host(_ROWS * _WIDTH),
        host_delta=_host(_ROWS * _OUT).copy_(torch.randn(_ROWS * _OUT)),
        host_sent=_host(12, dtype=torch.int32),
        host_done=_host(MAX_PROCESSES, dtype=torch.int64),
        host_pids=_host(MAX_PROCESSES, dtype=torch.int64),
        host_failed=_host(1, dtype=torch.int32),
        step=step.to(GPU),
        owner=torch.zeros(1, dtype=torch.int32, device=GPU),
        counter=torch.zeros(1, dtype=torch.int32, device=GPU),
        arrivals=torch.zeros(2, 4, dtype=torch.int32, device=GPU),
    )
    tensors.host_pids[list(_PROCESSES)] = 1234
    return tensors


def _send(tensors: ExchangeTensors, group: int = 1) -> Tensor:
    x = torch.randn(_BUCKET_ROWS + 2, _WIDTH, device=GPU)
    host_exchange.send(x, tensors, 9, group, 3, _BUCKET_ROWS)
    _synchronize()
    return x[_BUCKET_ROWS - _ROWS : _BUCKET_ROWS].cpu()


def _receive(tensors: ExchangeTensors, group: int = 1) -> tuple[Tensor, Tensor]:
    """delta before and after."""
    delta = torch.randn(_BUCKET_ROWS + 2, _OUT, device=GPU)
    before = delta.clone()
    host_exchange.receive(delta, tensors, 9, group, _BUCKET_ROWS)
    _synchronize()
    return before.cpu(), delta.cpu()


def _answer(tensors: ExchangeTensors, key: int = _KEY, processes: tuple[int, ...] = _PROCESSES) -> None:
    for process in processes:
        tensors.host_done[process] = done_word(key, 9)


def _synchronize() -> None:
    if GPU.type == "cuda":
        torch.cuda.synchronize()


def test_rows_go_out_and_their_lora_comes_back() -> None:
    tensors = _tensors()
    rows = _send(tensors)
    assert tensors.host_sent[9] == _KEY and tensors.counter.item() == 0
    assert torch.equal(tensors.host_x.view(_ROWS, _WIDTH), rows)
    _answer(tensors)
    before, after = _receive(tensors)
    exchanged = slice(_BUCKET_ROWS - _ROWS, _BUCKET_ROWS)
    assert torch.equal(after[exchanged], tensors.host_delta.view(_ROWS, _OUT))
    before[exchanged] = after[exchanged]
    assert torch.equal(after, before), "other rows stay"
    assert tensors.step[ExchangeField.FAILED] == 0


def test_a_layer_that_has_arrived_is_left_to_the_device() -> None:
    tensors = _tensors()
    tensors.arrivals[1, 3] = 7
    _send(tensors)
    assert tensors.host_sent[9] == -_KEY and tensors.counter.item() == 0
    before, after = _receive(tensors)
    assert torch.equal(before, after) and tensors.step[ExchangeField.NUM_LOOKS] == 0


@pytest.mark.parametrize("fields", [{"KEY": 0}, {"GROUPS": 0b01}])
def test_steps_and_groups_without_an_exchange_touch_nothing(fields: dict[str, int]) -> None:
    tensors = _tensors(**fields)
    tensors.owner.fill_(_KEY)
    _send(tensors)
    before, after = _receive(tensors)
    assert torch.equal(before, after) and not tensors.host_sent.any()


@pytest.mark.parametrize("processes", [(), (0,), (2,), (1,)])
def test_an_answer_that_does_not_come_ends_the_wait_and_all_later_ones(processes: tuple[int, ...]) -> None:
    tensors = _tensors()
    _send(tensors)
    _answer(tensors, processes=processes)
    before, after = _receive(tensors)
    assert torch.equal(before, after)
    assert tensors.host_failed[0] == _KEY and tensors.step[ExchangeField.NUM_LOOKS] == 3
    _send(tensors)
    assert tensors.host_sent[9] == -_KEY, "the rest of the step is the device's"


@pytest.mark.parametrize("pid", [DEAD, 0])
def test_the_death_of_a_process_ends_the_wait_for_all(pid: int) -> None:
    tensors = _tensors(MAX_LOOKS=1000, MAX_LOOKS_FOR_ONE=1000, NUM_LOOKS=5)
    _send(tensors)
    _answer(tensors, processes=(0,))
    tensors.host_pids[2] = pid
    before, after = _receive(tensors)
    assert torch.equal(before, after) and tensors.host_failed[0] == _KEY
    assert tensors.step[ExchangeField.NUM_LOOKS] == 6


def test_an_answer_counts_though_the_process_has_died_since() -> None:
    tensors = _tensors()
    _send(tensors)
    _answer(tensors)
    tensors.host_pids.fill_(DEAD)
    _, after = _receive(tensors)
    assert torch.equal(after[_BUCKET_ROWS - _ROWS : _BUCKET_ROWS], tensors.host_delta.view(_ROWS, _OUT))
    assert not tensors.host_failed[0]


def test_one_exchange_may_not_take_all_looks_of_the_step() -> None:
    tensors = _tensors(MAX_LOOKS=1000, MAX_LOOKS_FOR_ONE=20, NUM_LOOKS=300)
    _send(tensors)
    _receive(tensors)
    assert tensors.host_failed[0] == _KEY and tensors.step[ExchangeField.NUM_LOOKS] == 320


def test_an_answer_to_another_step_is_none() -> None:
    tensors = _tensors()
    _send(tensors)
    _answer(tensors, key=_KEY - 1)
    _receive(tensors)
    assert tensors.host_failed[0] == _KEY


def test_looks_can_be_counted_by_a_wait_that_no_answer_ends() -> None:
    tensors = _tensors(KEY=NO_ARRIVAL_KEY, MAX_LOOKS=20, MAX_LOOKS_FOR_ONE=20)
    tensors.owner.fill_(NO_ARRIVAL_KEY)
    _answer(tensors, key=NO_ARRIVAL_KEY - 1)
    _receive(tensors)
    assert tensors.step[ExchangeField.NUM_LOOKS] == 20
