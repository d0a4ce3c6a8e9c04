import subprocess
from pathlib import Path

import pytest

from punica_serve.process.module_command import module_command

_DYING = """
import os, signal, sys

def die(words):
    print(*words, flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)

die(sys.argv[1:])
"""


def test_a_module_that_dies_of_a_fault_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dying.py").write_text(_DYING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    command = module_command("dying", "a", "b")
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (-11, "a b\n")
    assert "Segmentation fault" in ended.stderr and "dying.py" in ended.stderr and "in die" in ended.stderr


def test_a_module_in_the_working_directory_is_not_found(tmp_path: Path) -> None:
    (tmp_path / "dying.py").write_text(_DYING)
    ended = subprocess.run(module_command("dying"), cwd=tmp_path, capture_output=True, timeout=60, check=False)
    assert ended.returncode == 1 and b"No module named dying" in ended.stderr
