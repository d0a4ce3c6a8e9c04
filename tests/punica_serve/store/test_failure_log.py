"""Failures that last get a line a minute, which counts them."""

import errno
import logging

import pytest

from punica_serve.store.failure_log import FailureLog

FULL = OSError(errno.ENOSPC, "No space left on device")
DOWN = ConnectionError("nobody answers")


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def failures(clock: Clock, caplog: pytest.LogCaptureFixture) -> FailureLog:
    caplog.set_level("INFO")
    return FailureLog(logging.getLogger("test"), clock)


def test_a_full_disk_has_a_line_a_minute_with_the_count(
    failures: FailureLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(121):
        failures.failed("the upload", FULL)
        failures.worked("the upload")  # its first bytes fit
        clock.now_s += 1.0
    assert [record.getMessage() for record in caplog.records] == [
        "the upload failed: OSError: [Errno 28] No space left on device",
        "the upload failed: OSError: [Errno 28] No space left on device (60 times in 60 s)",
        "the upload failed: OSError: [Errno 28] No space left on device (60 times in 60 s)",
    ]


def test_another_failure_has_lines_of_its_own(failures: FailureLog, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        for what in ("the upload", "the download"):
            failures.failed(what, FULL)
            failures.failed(what, DOWN)
    assert len(caplog.records) == 4


def test_the_end_has_a_line_once(failures: FailureLog, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    for error in (FULL, FULL, DOWN):
        failures.failed("the upload", error)
    caplog.clear()
    clock.now_s += 59.0
    failures.worked("the upload")
    clock.now_s += 1.0
    failures.worked("the download")
    assert not caplog.records
    for _ in range(2):
        failures.worked("the upload")
    assert [record.getMessage() for record in caplog.records] == ["the upload works again, after 3 failures"]
    failures.failed("the upload", FULL)
    assert "(1 time" not in caplog.text and len(caplog.records) == 2
