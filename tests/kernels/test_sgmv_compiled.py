"""The code that the compiler makes of SGMV for an H200, without one: its layouts and registers decide the speed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "support" / "compiled_expand.py"


@pytest.fixture(scope="module", params=[1, pytest.param(3, marks=pytest.mark.slow)])
def lines(request: pytest.FixtureRequest) -> list[list[int]]:
    """The script's lines of numbers, from a process of its own: in this one kernels are the interpreter's."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, str(SCRIPT), str(request.param)]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr
    return [[*map(int, line.split())] for line in found.stdout.splitlines()]


def test_partial_sums_are_added_before_they_change_their_layout(lines: list[list[int]]) -> None:
    """If each changed it by itself, a tile would take as many shuffles as splits: twice the instructions for 16."""
    of_4_splits, *of_more = lines[0]
    assert of_more == [of_4_splits] * len(of_more)


def test_where_programs_take_tiles_in_turns_and_beside_prompts_no_weights_spill(lines: list[list[int]]) -> None:
    """Two words do, which are read again for each block of columns of a tile of several rows. Weights take 64 a row."""
    assert max(lines[1]) <= 8


def test_within_the_activation_nothing_spills(lines: list[list[int]]) -> None:
    assert not any(lines[2])
