import logging
from concurrent.futures import ThreadPoolExecutor

import pytest

from punica_serve.process.limited_log import LimitedLog

LOG = logging.getLogger("punica_serve.test")


def test_one_line_in_a_while_counts_those_left_out(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 5.0
    limited = LimitedLog(LOG, 60.0, monotonic=lambda: now_s)
    for number in range(4):
        limited.warning("refused %d", number)
    now_s += 59.9
    limited.warning("refused %d", 4)
    assert caplog.messages == ["refused 0"]
    now_s += 0.1
    limited.warning("refused %d", 5)
    now_s += 60.0
    limited.warning("refused %d", 6)
    assert caplog.messages[1:] == ["refused 5 (and 4 more since the last such line)", "refused 6"]


def test_threads_lose_no_line(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 0.0
    limited = LimitedLog(LOG, 60.0, monotonic=lambda: now_s)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: limited.warning("refused"), range(1000)))
    now_s += 60.0
    limited.warning("refused")
    assert caplog.messages == ["refused", "refused (and 999 more since the last such line)"]
