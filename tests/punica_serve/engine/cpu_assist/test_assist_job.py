"""The end of a step with exchanges: whether its prefill counts, and how long the step loop waits to know."""

import time
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from punica_serve.engine.cpu_assist.assist_job import AssistJob, WaitLimits
from punica_serve.errors import RequestFailed


def job(failed_key: int, peers: "Future[Any] | None" = None) -> tuple[AssistJob, list[bool]]:
    """The job 7, and what it tells at its end."""
    told: list[bool] = []
    words: Any = SimpleNamespace(key=7, num_rows=1, weights=(), processes=())
    memory: Any = SimpleNamespace(failed=[failed_key], end_job=lambda key: None)
    arrival: Any = None
    return AssistJob(
        words, memory, arrival, WaitLimits.both(1.0), lambda _, is_late: told.append(is_late), peers=peers
    ), told


@pytest.mark.parametrize(("failed_key", "is_good"), [(7, False), (6, True), (0, True)])
def test_a_prefill_counts_unless_its_own_job_has_failed(failed_key: int, is_good: bool) -> None:
    own, told = job(failed_key)
    assert own.end() is is_good and told == [not is_good]


@pytest.mark.parametrize("error", [None, RequestFailed("in vain")])
def test_it_counts_on_all_ranks_or_on_none(error: RequestFailed | None) -> None:
    peers = Future[Any]()
    if error is None:
        peers.set_result(None)
    else:
        peers.set_exception(error)
    own, told = job(0, peers)
    assert own.end() is (error is None) and told == [False]


def test_ranks_that_do_not_answer_do_not_hold_the_step_loop() -> None:
    own, _ = job(0, Future())
    started_s = time.perf_counter()
    assert own.end() is False, "its prefill is computed again"
    assert time.perf_counter() - started_s < 1
