"""The code that the compiler makes of Hopper's attention for an H200, without one."""

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "support" / "compiled_attention.py"


def test_products_run_beside_the_softmax_and_nothing_spills() -> None:
    """If the softmax read a register of a product in flight, the assembler would let all products wait."""
    # In a process of its own: in this one kernels are the interpreter's.
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    found = subprocess.run([sys.executable, SCRIPT], env=environment, capture_output=True, text=True, timeout=240)
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines() == [""] * 5
