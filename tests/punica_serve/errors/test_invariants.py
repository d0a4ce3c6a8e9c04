"""Invariants are also checked under ``python -O``, which drops assert statements."""

import subprocess
import sys

import pytest

from punica_serve.errors.invariants import InvariantBroken, require

CORRUPT = """
from punica_scheduler.core.events import GpuJoined
from punica_scheduler.core.scheduler import Scheduler
from punica_serve.protocol import GpuInfo

assert False, "this is not python -O"
scheduler = Scheduler(1)
scheduler.handle(GpuJoined("runner", GpuInfo("A", "cpu", 8, 4, 16, {})), 2)
scheduler.check_invariants()
scheduler._fleet.gpus["A"].num_pages_ahead = 3
scheduler.check_invariants()
"""


def test_an_invariant_that_holds_raises_nothing() -> None:
    require(True, "it holds")
    with pytest.raises(InvariantBroken, match="it does not"):
        require([], "it does not")


def test_an_audit_finds_a_contradiction_without_assert() -> None:
    done = subprocess.run(
        [sys.executable, "-O", "-c", CORRUPT], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("InvariantBroken: pages of A")
