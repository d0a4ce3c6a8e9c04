"""A group ends with its LLM, though nobody has closed it, so that the process can lead another one."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from process_tree import alive
from punica_serve import LLM
from punica_serve.errors import ConfigError
from punica_serve.offline.dropped_llm import await_dropped
from rank_pids import rank_pids

_DEADLINE_S = 30.0


def _llm(model: Path) -> LLM:
    return LLM(model, tensor_parallel=2, cpu_threads=1)


def _pids(llm: LLM) -> list[int]:
    return rank_pids(llm.engine)


def test_a_group_that_is_referred_to_stays_and_a_dropped_one_ends_so_that_the_next_can_begin(tiny_llama: Path) -> None:
    llm = _llm(tiny_llama)
    pids = _pids(llm)
    with pytest.raises(ConfigError, match=r"a group of ranks already, .*; another LLM .* is open on cpu: call its"):
        _llm(tiny_llama)
    assert llm.generate("1", progress=False)[0].error is None
    del llm
    with _llm(tiny_llama) as llm:
        assert not alive(pids)
        assert llm.generate("1", progress=False)[0].error is None
    assert not any(thread.name in ("rank-watch", "engine-closer") for thread in threading.enumerate())


@pytest.mark.slow
def test_one_within_a_cycle_of_references_ends_too(tiny_llama: Path) -> None:
    cycle: list[Any] = [_llm(tiny_llama)]
    cycle.append(cycle)
    pids = _pids(cycle[0])
    assert alive(pids)
    del cycle
    await_dropped()
    assert not alive(pids)


@pytest.mark.slow
def test_a_group_ends_though_a_thread_of_its_own_drops_it(tiny_llama: Path) -> None:
    """As where the garbage collector runs there."""
    dropped = [_llm(tiny_llama)]
    pids = _pids(dropped[0])
    group = dropped[0].engine._group._group
    assert group is not None
    group._watch._on_tick = dropped.clear
    deadline_s = time.monotonic() + _DEADLINE_S
    while alive(pids) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert not alive(pids)
