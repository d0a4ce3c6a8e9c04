"""The goals of `bench serving`: the stack over the bare engine, its frontend's CPU time, and long prompts."""

from collections.abc import Iterator, Sequence

from punica_serve.bench.goals import Goal, goals_table
from punica_serve.bench.reference_figures import goals
from punica_serve.bench.report import TableData
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
            added_ms = result.first_token_ms[0] - engine.first_token_ms[0]
            yield Goal(bounds["first_token_added_ms"], added_ms, load)
        if row.api == "http":
            yield Goal(bounds["frontend_us_per_token"], row.frontend_us_per_token, load)
        if (long := row.long_prompts) is not None and long.num_prompts and long.without.gap_ms[1]:
            yield Goal(bounds["beside_long_prompts"], long.beside.gap_ms[1] / long.without.gap_ms[1], load)
