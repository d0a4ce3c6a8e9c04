"""The code that the compiler makes of attention for an H200, without one."""

import os
import subprocess
import sys
from pathlib import Path

SUPPORT = Path(__file__).parents[1] / "support"


def _complaints(script: str) -> list[str]:
    """The lines of a script in a process of its own: in this one kernels are the interpreter's."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, str(SUPPORT / script)]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert found.returncode == 0, found.stderr
    return found.stdout.splitlines()


def test_products_of_prompts_run_beside_the_softmax_and_nothing_spills() -> None:
    """If the softmax read a register of a product in flight, the assembler would let all products wait."""
    assert _complaints("compiled_attention.py") == [""] * 5


def test_decodes_spill_nothing_whether_they_share_prefixes_or_not() -> None:
    assert _complaints("compiled_decodes.py") == [""] * 8
