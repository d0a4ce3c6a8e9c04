"""LoRA's part of the decode steps of `bench textgen`, beside the time of its bytes; the goals of large batches
and of other shapes.
"""

from punica_serve.bench.goals import Goal
from punica_serve.bench.reference_figures import goals
from punica_serve.bench.report import TableData, Value
from punica_serve.bench.textgen_rows import ROWS

#: The rank that goals are for.
_RANK = 16
#: The batch sizes that have goals, with the name of the goal of a step over its floor.
_OVER_FLOOR = {64: "over_floor", 128: "over_floor", 256: "over_floor_256"}


def by_row(table: TableData, key: str) -> dict[str, float]:
    """The rows' values in one column, where present."""
    values = {str(record["row"]): record[key] for record in table.records}
    return {row: float(value) for row, value in values.items() if value is not None}


def step_facts(steps: TableData) -> dict[str, Value]:
    """LoRA's part of median decode steps, and the speeds of rows at their floors; none without a backbone's."""
    floor_ms = by_row(steps, "floor_ms")
    facts: dict[str, Value] = {}
    for row in ("distinct", "identical"):
        if (added_ms := added_by_lora_ms(steps, row)) is not None:
            facts[f"added to the decode step by LoRA, {row}, ms"] = added_ms
        if (over := over_bytes(steps, row)) is not None:
            facts[f"the same over the time of its bytes, {row}"] = over
        if row in floor_ms and "backbone" in floor_ms:
            facts[f"decode steps at their floors, {row} / backbone in tokens/s"] = floor_ms["backbone"] / floor_ms[row]
    return facts


def batch_goals(steps: TableData, batch_size: int, rank: int) -> list[Goal]:
    """The goals of batches of 64, 128 and 256; none of other sizes and ranks."""
    if batch_size not in _OVER_FLOOR or rank != _RANK:
        return []
    bounds, over_floor = goals().textgen_batches, by_row(steps, "over_floor")
    return [
        Goal(bounds["lora_over_bytes"], over_bytes(steps, "distinct")),
        Goal(bounds["lora_identical_ms"], added_by_lora_ms(steps, "identical")),
        *(
            Goal(bounds[_OVER_FLOOR[batch_size]], over, row)
            for row, over in over_floor.items()
            if not ROWS[row].filtered
        ),
    ]


def shape_goals(steps: TableData, shape: str) -> list[Goal]:
    """The goal of a step of another model shape; none of a shape that has no goal."""
    bound = goals().textgen_shapes.get(shape)
    return [] if bound is None else [Goal(bound, by_row(steps, "over_floor").get("distinct"))]


def added_by_lora_ms(steps: TableData, row: str) -> float | None:
    """A row's median decode step over the backbone's; None if either was not measured."""
    return _difference(by_row(steps, "decode_ms_median"), row)


def over_bytes(steps: TableData, row: str) -> float | None:
    """The same over what it adds to the floor."""
    added_ms, floor_ms = added_by_lora_ms(steps, row), _difference(by_row(steps, "floor_ms"), row)
    return None if added_ms is None or not floor_ms else added_ms / floor_ms


def _difference(values: dict[str, float], row: str) -> float | None:
    return values[row] - values["backbone"] if row in values and "backbone" in values else None
