"""The code that the compiler makes of a layer's exchange for an H200, without one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "support" / "compiled_all_reduce_norm.py"


@pytest.mark.parametrize("configurations", [2, pytest.param(5, marks=pytest.mark.slow)])
def test_rows_of_other_ranks_are_read_at_full_width_and_nothing_spills(configurations: int) -> None:
    """The compiler can't know how an address that it loads is aligned: untold, it reads two bytes at once."""
    # In a process of its own: in this one kernels are the interpreter's.
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, str(SCRIPT), str(configurations)]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines() == [""] * configurations
