"""The end of a step with exchanges: whether its prefill counts, and how long the step loop waits to know."""

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


class _Silent(Future[Any]):
    """An answer that does not come, and how long each wait for it may take."""

    def __init__(self) -> None:
        super().__init__()
        self.timeouts_s: list[float | None] = []

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self.timeouts_s.append(timeout)
        return super().exception(timeout)


def test_ranks_that_do_not_answer_do_not_hold_the_step_loop() -> None:
    peers = _Silent()
    own, _ = job(0, peers)
    assert own.end() is False, "its prefill is computed again"
    (timeout_s,) = peers.timeouts_s
    assert timeout_s is not None and timeout_s < 1
