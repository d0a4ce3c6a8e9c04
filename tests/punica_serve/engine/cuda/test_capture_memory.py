"""Captures that ran out of memory, told from the memory that was free before each."""

from pathlib import Path

import pytest

from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.cuda.capture_memory import CaptureMemory
from punica_serve.engine.memory.step_memory import largest_fitting
from punica_serve.shapes import shape_of

MIB = 1 << 20
LLAMA = shape_of("llama-2-7b")
CONFIG = EngineConfig(model=Path("m"), max_batch_size=32, prefill_budget_tokens=4096)
NUM_CAPTURES = 60


def captures(room_mib: int, free_mib: list[int]) -> CaptureMemory:
    """A start that ran out behind the last of these."""
    free = [mib * MIB for mib in free_mib]
    made = CaptureMemory(room_mib * MIB, lambda: free.pop(0))
    for done in range(len(free_mib)):
        made.begin(done, NUM_CAPTURES)
    return made


def fits(made: CaptureMemory, room_mib: int) -> tuple[int, int]:
    """Prompt tokens and requests that would fit."""
    needs = made.needs(CONFIG, LLAMA)
    assert needs(CONFIG) > room_mib * MIB
    tokens = largest_fitting(CONFIG, "prefill_budget_tokens", needs, room_mib * MIB, CONFIG.prefill_budget_tokens)
    return tokens, largest_fitting(CONFIG, "max_batch_size", needs, room_mib * MIB, CONFIG.max_batch_size)


def test_captures_are_counted_on_their_way_to_the_log() -> None:
    counts = []
    made = CaptureMemory(5 * MIB, lambda: 4 * MIB, lambda done, total: counts.append((done, total)))
    made.begin(0, 3)
    made.begin(1, 3)
    assert counts == [(0, 3), (1, 3)]


@pytest.mark.parametrize(
    ("free_mib", "told"),
    [([], "their tables took"), ([1900], "0 of 60 kinds of steps took"), ([1900, 800, 700], "2 of 60 kinds of steps")],
)
def test_a_failure_tells_how_far_it_came(free_mib: list[int], told: str) -> None:
    assert captures(2048, free_mib).told(1536 * MIB).startswith(told)
    assert (
        captures(2048, free_mib)
        .told(1536 * MIB)
        .endswith("1.5 GiB of the 2.0 GiB that weights and pools leave, and more was needed")
    )


def test_later_captures_count_as_those_that_were_done() -> None:
    """The first took 1,000 MiB and the others 40 each, so all would take 3,360 of 2,048: fewer tokens spare little of
    the first's, and many of the others.
    """
    by_growth, _ = fits(captures(2048, [2000, 1048, *range(1008, 8, -40)]), 2048)
    slight_growth, _ = fits(captures(2048, [2000, 1048, 1028, 1008, 988]), 2048)
    assert 0 < by_growth < slight_growth < CONFIG.prefill_budget_tokens


def test_where_the_first_capture_failed_a_smaller_step_is_named() -> None:
    for free_mib in ([], [1900]):
        tokens, requests = fits(captures(2048, free_mib), 2048)
        assert 0 < tokens < CONFIG.prefill_budget_tokens and 0 < requests < CONFIG.max_batch_size


def test_a_step_that_frees_nothing_is_not_said_to_fit() -> None:
    """Where each capture takes much, no budget is small enough: decodes have captures of their own."""
    tokens, requests = fits(captures(2048, [2000, 1048, 548, 48]), 2048)
    assert (tokens, requests) == (0, 0)
