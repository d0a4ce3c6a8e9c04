"""A word that the kernel changes when the process that holds it dies."""

import mmap
import os
import signal
import time
from collections.abc import Iterator

import numpy as np
import pytest

from cpu_assist_host import NEEDS_CPU_ASSIST
from punica_kernels.exchange_words import DEAD
from punica_serve.engine.cpu_assist.exchange_memory import Words
from punica_serve.engine.cpu_assist.life_word import robust_list, shown_alive
from waits import DEADLINE_S

pytestmark = [
    NEEDS_CPU_ASSIST,
    # The forked processes do nothing that another thread may have locked.
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
]


@pytest.fixture
def word() -> Words:
    """Shared with processes that are forked from here."""
    return np.frombuffer(mmap.mmap(-1, mmap.PAGESIZE), dtype=np.int64)[5:6]


@pytest.fixture
def holder(word: Words) -> Iterator[int]:
    """A process that does nothing but hold the word."""
    pid = os.fork()
    if pid == 0:
        with shown_alive(word):
            time.sleep(DEADLINE_S)
        os._exit(0)
    yield pid
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_the_word_is_the_number_of_a_process_that_lives_and_changes_when_it_is_killed(word: Words, holder: int) -> None:
    """Nobody waits for the process: it is the kernel that writes."""
    _wait_until(word, holder)
    os.kill(holder, signal.SIGKILL)
    _wait_until(word, DEAD)


def test_a_process_that_is_stopped_lives(word: Words, holder: int) -> None:
    _wait_until(word, holder)
    os.kill(holder, signal.SIGSTOP)
    _, status = os.waitpid(holder, os.WUNTRACED)
    assert os.WIFSTOPPED(status) and word[0] == holder


def test_a_process_that_lets_the_word_go_counts_as_dead(word: Words) -> None:
    former = robust_list()
    with shown_alive(word):
        assert word[0] == os.getpid() and robust_list() != former
    assert word[0] == DEAD and robust_list() == former


def _wait_until(word: Words, value: int) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while word[0] != value:
        assert time.monotonic() < deadline_s, f"the word is {word[0]}"
        time.sleep(1e-4)
