"""LoRA's part of decode steps, from the medians of `bench textgen`."""

import pytest

from punica_serve.bench.lora_in_steps import batch_goals, step_facts
from punica_serve.bench.report import Column, TableData

_KEYS = ("row", "decode_ms_median", "floor_ms", "over_floor")


def steps(*rows: tuple[str, float, float | None, float | None]) -> TableData:
    return TableData("steps", "", tuple(Column(key, key) for key in _KEYS), rows)


#: Measured on one H100 with at most 128 requests in a step.
MEASURED = steps(("distinct", 10.06, 8.66, 1.17), ("identical", 8.49, 6.94, 1.23), ("backbone", 8.06, 6.91, 1.17))


def test_facts_compare_rows_with_the_backbone() -> None:
    assert step_facts(MEASURED) == pytest.approx(
        {
            "added to the decode step by LoRA, distinct, ms": 2.0,
            "the same over the time of its bytes, distinct": 2.0 / 1.75,
            "decode steps at their floors, distinct / backbone in tokens/s": 6.91 / 8.66,
            "added to the decode step by LoRA, identical, ms": 0.43,
            "the same over the time of its bytes, identical": 0.43 / 0.03,
            "decode steps at their floors, identical / backbone in tokens/s": 6.91 / 6.94,
        }
    )


def test_without_a_floor_or_a_backbone_the_rest_is_told() -> None:
    assert step_facts(steps(("distinct", 10.0, None, None), ("backbone", 8.0, None, None))) == {
        "added to the decode step by LoRA, distinct, ms": 2.0
    }
    assert step_facts(steps(("distinct", 10.0, 8.0, 1.25))) == {}


def test_large_batches_have_goals_of_their_own() -> None:
    goals = batch_goals(MEASURED, 128, rank=16)
    assert [goal.measured for goal in goals] == pytest.approx([2.0 / 1.75, 0.43, 1.17, 1.23, 1.17])
    assert [goal.is_met for goal in goals] == [True, False, True, False, True]
    assert [goal.is_met for goal in batch_goals(MEASURED, 256, rank=16)] == [True, False, True, True, True]
    assert batch_goals(MEASURED, 32, rank=16) == batch_goals(MEASURED, 128, rank=64) == []
