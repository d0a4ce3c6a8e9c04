"""The code that the compiler makes of attention for an H200, without one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SUPPORT = Path(__file__).parents[1] / "support"


def _complaints(script: str, argument: int) -> list[str]:
    """The lines of a script in a process of its own: in this one kernels are the interpreter's."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, str(SUPPORT / script), str(argument)]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert found.returncode == 0, found.stderr
    return found.stdout.splitlines()


@pytest.mark.parametrize("configurations", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_products_of_prompts_run_beside_the_softmax_and_nothing_spills(configurations: int) -> None:
    """If the softmax read a register of a product in flight, the assembler would let all products wait."""
    assert _complaints("compiled_attention.py", configurations) == [""] * configurations


@pytest.mark.slow
def test_products_of_long_prompts_run_beside_the_softmax_and_loops_of_heads_of_128_spill_nothing() -> None:
    """Outside those loops a few registers spill, once a tile."""
    assert _complaints("compiled_prompts.py", 4) == [""] * 4


@pytest.mark.parametrize("models", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_decodes_spill_nothing_whether_they_share_prefixes_or_not(models: int) -> None:
    assert _complaints("compiled_decodes.py", models) == [""] * (2 * models)
