"""The goals of `bench serving`: the stack over the bare engine, its frontend's CPU time, and long prompts."""

from collections.abc import Iterator, Sequence

from punica_serve.bench.goals import Goal, goals_table
from punica_serve.bench.reference_figures import goals
from punica_serve.bench.report import TableData
from punica_serve.bench.serving.served_times import LongPromptResult, Percentiles
from punica_serve.bench.serving.serving_run import ServingRow


def serving_goals(rows: Sequence[ServingRow]) -> list[TableData]:
    """A table of the goals that these runs measured, if there are any."""
    table = goals_table(list(_goals(rows)), "Goals (one GPU and one frontend)")
    return [table] if table.rows else []


def _goals(rows: Sequence[ServingRow]) -> Iterator[Goal]:
    bounds = goals().serving
    engines = {(row.workload, row.population): row.result for row in rows if row.api == "engine"}
    for row in rows:
        if row.api == "engine":
            continue
        load, result = f"{row.workload}, {row.population}, {row.api}", row.result
        if engine := engines.get((row.workload, row.population)):
            ratio = result.tokens_per_s / engine.tokens_per_s if engine.tokens_per_s else None
            yield Goal(bounds["over_engine"], ratio, load)
            yield Goal(bounds["first_token_added_ms"], _added(result.first_token_ms, engine.first_token_ms), load)
        if row.api == "http":
            yield Goal(bounds["frontend_us_per_token"], row.frontend_us_per_token, load)
        if (long := row.long_prompts) is not None and long.num_prompts:
            yield Goal(bounds["beside_long_prompts"], _beside_over_without(long), load)


def _added(served_ms: Percentiles, engine_ms: Percentiles) -> float | None:
    """By how much the stack lengthens the p50."""
    served, engine = served_ms[0], engine_ms[0]
    return None if served is None or engine is None else served - engine


def _beside_over_without(long: LongPromptResult) -> float | None:
    """The p99 between tokens."""
    beside, without = long.beside.gap_ms[1], long.without.gap_ms[1]
    return None if beside is None or not without else beside / without
