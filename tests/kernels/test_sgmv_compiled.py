"""The code that the compiler makes of SGMV for an H200, without one: its layouts decide the speed."""

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "support" / "compiled_expand.py"


def test_partial_sums_are_added_before_they_change_their_layout() -> None:
    """If each changed it by itself, a tile would take as many shuffles as splits: twice the instructions for 16."""
    # In a process of its own: in this one kernels are the interpreter's.
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    found = subprocess.run([sys.executable, SCRIPT], env=environment, capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr
    of_4_splits, *of_more = map(int, found.stdout.split())
    assert of_more == [of_4_splits] * len(of_more)
