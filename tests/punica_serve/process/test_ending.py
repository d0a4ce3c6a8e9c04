"""Child processes end within a deadline: by themselves, or killed."""

import multiprocessing
import signal
import subprocess
import sys
import time

import pytest

from punica_serve.process import ending
from punica_serve.process.ending import end_process, end_program

_context = multiprocessing.get_context("fork")


def test_what_ends_in_time_is_not_killed() -> None:
    program = subprocess.Popen(["true"])
    end_program(program, 10.0)
    assert program.returncode == 0
    process = _context.Process(target=time.sleep, args=(0,))
    process.start()
    end_process(process, 10.0)
    assert process.exitcode == 0


def test_what_stays_is_killed() -> None:
    program = subprocess.Popen(["sleep", "60"])
    end_program(program, 0.01)
    assert program.returncode == -signal.SIGKILL
    process = _context.Process(target=time.sleep, args=(60,))
    process.start()
    end_process(process)
    assert process.exitcode == -signal.SIGKILL


class _Unkillable(subprocess.Popen[bytes]):
    """As in a call that can't be interrupted: SIGKILL waits for the call's end."""

    def kill(self) -> None:
        pass


def test_nobody_waits_for_what_outlives_its_kill(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ending, "_KILL_TIMEOUT_S", 0.01)
    program = _Unkillable([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    end_program(program)
    assert caplog.messages == [f"process {program.pid} was killed and is not gone after 0.01 s"]
    program.communicate(b"\n", timeout=30)
