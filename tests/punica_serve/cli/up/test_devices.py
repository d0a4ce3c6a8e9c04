"""The check of a config's GPUs in a process of its own."""

import sys

import pytest

from punica_serve.cli.up import devices
from punica_serve.cli.up.devices import check_devices
from punica_serve.errors import ConfigError


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("import os; os.kill(os.getpid(), 11)", "the check of cuda:0, cuda:1 was killed by SIGSEGV; "),
        ("print('cuda:1 is busy'); raise SystemExit(2)", "cuda:1 is busy; "),
        ("raise SystemExit(1)", "exit code 1; "),
    ],
)
def test_a_check_that_fails_says_why_in_one_line(script: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "module_command", lambda *_: [sys.executable, "-X", "faulthandler", "-c", script])
    with pytest.raises(ConfigError, match=f"^{message}`runner.devices: \\[cpu\\]` serves without a GPU$"):
        check_devices(["cpu", "cuda:0,cuda:1"])
