"""The report of `bench serving`: a row for each run, and a picture of tokens/s."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from punica_serve.bench.report import Column, Report, TableData, Value, host_facts, numbers
from punica_serve.bench.serving.serving_goals import serving_goals
from punica_serve.bench.serving.serving_run import ServingRow
from punica_serve.bench.serving.serving_settings import ServingSettings
from punica_serve.bench.serving.serving_workloads import cut_in_words

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLUMNS = (
    Column("workload", "workload"),
    Column("population", "adapters"),
    Column("api", "API"),
    Column("num_requests", "requests", ",d"),
    Column("num_failed", "failed", ",d"),
    Column("seconds", "total s", ",.2f"),
    Column("tokens_per_s", "tokens/s", ",.0f"),
    Column("first_token_p50_ms", "first token, p50 ms", ",.1f"),
    Column("first_token_p99_ms", "p99 ms", ",.1f"),
    Column("gap_p50_ms", "between tokens, p50 ms", ",.2f"),
    Column("gap_p99_ms", "p99 ms", ",.2f"),
    Column("goodput_per_s", "within the SLO, requests/s", ",.2f"),
    Column("frontend_us_per_token", "frontend CPU µs/token", ",.0f"),
)

_LONG_COLUMNS = (
    Column("workload", "workload"),
    Column("population", "adapters"),
    Column("api", "API"),
    Column("num_long", "long prompts", ",d"),
    Column("long_first_token_p50_ms", "their first token, p50 ms", ",.0f"),
    Column("long_first_token_p99_ms", "p99 ms", ",.0f"),
    Column("first_token_beside_p50_ms", "the others' first token meanwhile, p50 ms", ",.1f"),
    Column("first_token_beside_p99_ms", "p99 ms", ",.1f"),
    Column("first_token_without_p50_ms", "without, p50 ms", ",.1f"),
    Column("first_token_without_p99_ms", "p99 ms", ",.1f"),
    Column("gap_beside_p50_ms", "between the others' tokens meanwhile, p50 ms", ",.2f"),
    Column("gap_beside_p99_ms", "p99 ms", ",.2f"),
    Column("gap_without_p50_ms", "without, p50 ms", ",.2f"),
    Column("gap_without_p99_ms", "p99 ms", ",.2f"),
)


def make_report(rows: Sequence[ServingRow], settings: ServingSettings, model_name: str, *, max_context: int) -> Report:
    """The table and the picture of one run. ``max_context``: the model's, in tokens."""
    level = settings.level
    loads = zip(settings.workloads, settings.num_requests, strict=True)
    cuts = (cut_in_words(workload, count, max_context) for workload, count in loads)
    notes = (
        f"{settings.load}; {settings.adapters}; every adapter was used before",
        f"the SLO: first token within {level.first_token_s * 1e3:g} ms and"
        f" {level.per_token_s * 1e3:g} ms for each later token on average",
        *(words for words in cuts if words is not None),
    )
    table = TableData("serving", f"serving: {model_name}", _COLUMNS, [_cells(row) for row in rows], notes)
    return Report(
        name="serving",
        machine=host_facts(),
        settings={**asdict(settings), "model": model_name},
        tables=[table, *_long_tables(rows, settings), *serving_goals(rows)],
        figures={"": lambda figure: _draw(figure, table)},
        failures=[failure for row in rows for failure in _failures(row)],
    )


def _cells(row: ServingRow) -> tuple[Value, ...]:
    result = row.result
    return (
        *(row.workload, row.population, row.api, result.num_requests, result.num_failed),
        *(result.seconds, result.tokens_per_s, *result.first_token_ms, *result.gap_ms, result.goodput_per_s),
        row.frontend_us_per_token,
    )


def _long_tables(rows: Sequence[ServingRow], settings: ServingSettings) -> list[TableData]:
    """A table of the load beside long prompts, if there were any."""
    cells = [
        (
            *(row.workload, row.population, row.api),
            long.num_prompts,
            *long.first_token_ms,
            *(*long.beside.first_token_ms, *long.without.first_token_ms),
            *(*long.beside.gap_ms, *long.without.gap_ms),
        )
        for row in rows
        if (long := row.long_prompts) is not None
    ]
    title = f"beside prompts of {settings.long_prompt} tokens"
    return [TableData("long_prompts", title, _LONG_COLUMNS, cells)] if cells else []


def _failures(row: ServingRow) -> Iterator[str]:
    names = f"{row.workload}, {row.population}, {row.api}"
    if row.result.num_failed:
        failed = f"{row.result.num_failed} of {row.result.num_requests} requests failed"
        yield f"{names}: {failed}, the first: {row.result.first_error}"
    if row.long_prompts is not None and row.long_prompts.error is not None:
        yield f"{names}: a prompt of `--long-prompt` failed: {row.long_prompts.error}"


def _draw(figure: "Figure", table: TableData) -> None:
    """Draws bars of tokens/s beside the times to the first token and between tokens."""
    records = table.records
    figure.set_size_inches(12, 1.5 + 0.4 * len(records))
    names = [f"{record['workload']}, {record['population']}, {record['api']}" for record in records]
    panels = (
        ("tokens/s", "tokens_per_s"),
        ("first token, p50 ms", "first_token_p50_ms"),
        ("between tokens, p99 ms", "gap_p99_ms"),
    )
    for axes, (title, key) in zip(figure.subplots(1, len(panels), sharey=True), panels, strict=True):
        axes.barh(names, numbers(records, key))
        axes.set_title(title)
        axes.set_xlim(left=0)
    figure.axes[0].invert_yaxis()
