"""The speed of Python here and now: CPU times of a busy or slow machine mean something only beside it."""

import time

_NUM_ROUNDS = 300_000


def loop_ns() -> float:
    """The CPU time of a round of a fixed loop, in nanoseconds. It makes no object that stays and no system call."""
    total, started_s = 0, time.process_time()
    for number in range(_NUM_ROUNDS):
        total += number * number % 7
    return 1e9 * (time.process_time() - started_s) / _NUM_ROUNDS
