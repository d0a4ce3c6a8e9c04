"""The report of `bench textgen`: the rows, the goals, ratios within the run, and a picture."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from rich.progress import Progress

from punica_serve.bench.driver import StepTime
from punica_serve.bench.goals import GOAL_SHAPE, Goal, goals_table
from punica_serve.bench.lora_in_steps import added_by_lora_ms, batch_goals, by_row, shape_goals, step_facts
from punica_serve.bench.peft_baseline import PeftTimes, run_peft
from punica_serve.bench.reference_figures import goals, peers
from punica_serve.bench.report import Column, Report, TableData, Value, machine
from punica_serve.bench.step_floor import DeviceRates, StepBytes
from punica_serve.bench.subject import Subject
from punica_serve.bench.textgen import RowTimes, TextgenMeasured, TextgenSettings, run
from punica_serve.bench.textgen_rows import COUNTERPARTS, FILTERED, PEFT_ROW
from punica_serve.workload import Population

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SPEED_COLUMNS = (
    Column("row", "row"),
    Column("num_requests", "requests", ",d"),
    Column("num_adapters", "adapters", ",d"),
    Column("seconds", "total s", ",.2f"),
    Column("tokens_per_s", "tokens/s", ",.0f"),
    Column("tokens_per_s_lowest", "lowest", ",.0f"),
    Column("tokens_per_s_highest", "highest", ",.0f"),
    Column("mean_batch", "mean batch", ".1f"),
)
_VLLM_COLUMN = Column("vllm_tokens_per_s", "vLLM", ",.0f")

_STEP_COLUMNS = (
    Column("row", "row"),
    Column("decode_ms_median", "decode ms", ".2f"),
    Column("decode_ms_p90", "p90", ".2f"),
    Column("floor_ms", "floor ms", ".2f"),
    Column("over_floor", "step / floor", ".2f"),
    Column("mixed_ms_median", "with prefill ms", ".2f"),
    Column("num_decode_steps", "decode steps", ",d"),
    Column("num_mixed_steps", "with prefill", ",d"),
)


def measure_all(subject: Subject, settings: TextgenSettings, progress: Progress) -> Report:
    """Runs all rows: the engine's, then the baseline, which needs the device for itself."""
    measured = run(subject, settings, progress)
    peft = None
    if PEFT_ROW in settings.rows:
        subject.free_memory()
        try:
            peft = run_peft(subject, measured.workload.lengths, settings.rank)
        except (ImportError, RuntimeError) as error:
            measured = replace(measured, failures=(*measured.failures, f"{PEFT_ROW}: {error}"))
    return make_report(subject, settings, measured, peft)


def make_report(
    subject: Subject, settings: TextgenSettings, measured: TextgenMeasured, peft: PeftTimes | None
) -> Report:
    """The tables, goals and picture of one run."""
    at_goal_shape = subject.on_gpu and subject.title == GOAL_SHAPE and settings.is_of_the_goals
    speeds = _speed_table(f"textgen: {subject.title}, LoRA rank {settings.rank}", measured, peft)
    steps = _step_table(StepBytes.of(subject.model, subject.dtype, settings.rank), measured, peft)
    tables = [_with_vllm(speeds) if at_goal_shape else speeds, steps]
    if at_goal_shape:
        tables.append(goals_table(_goals(by_row(speeds, "tokens_per_s"), steps)))
    elif subject.on_gpu and subject.title == GOAL_SHAPE:
        tables.append(goals_table(batch_goals(steps, settings.batch_size, settings.rank)))
    elif subject.on_gpu and settings.has_steps_of_the_goals:
        tables.append(goals_table(shape_goals(steps, subject.title), f"Goals (one H200, {subject.title} shape)"))
    return Report(
        name="textgen",
        machine=machine(str(subject.device)),
        settings={**asdict(settings), "folder": None, "model": subject.title},
        tables=[table for table in tables if table.rows],
        figures={"": lambda figure: _draw(figure, tables[0])},
        facts={**_facts(measured, by_row(speeds, "tokens_per_s")), **step_facts(steps)},
        failures=measured.failures,
    )


def _speed_table(title: str, measured: TextgenMeasured, peft: PeftTimes | None) -> TableData:
    rows = [_speed_row(times) for times in measured.rows]
    if peft is not None:
        speed = peft.num_tokens / peft.seconds
        rows.append((PEFT_ROW, peft.num_requests, 1, peft.seconds, speed, speed, speed, 1.0))
    return TableData("speeds", title, _SPEED_COLUMNS, rows, _notes([str(row[0]) for row in rows]))


def _speed_row(times: RowTimes) -> tuple[Value, ...]:
    speeds = [run.tokens_per_s for run in times.rounds]
    return (
        times.row.name,
        times.num_requests,
        times.num_adapters,
        times.median.seconds,
        times.median.tokens_per_s,
        min(speeds),
        max(speeds),
        times.median.mean_batch_size,
    )


def _with_vllm(speeds: TableData) -> TableData:
    vllm = peers().textgen
    rows = [(*row, vllm.tokens_per_s.get(str(row[0]))) for row in speeds.rows]
    return replace(speeds, columns=(*speeds.columns, _VLLM_COLUMN), rows=rows, notes=(*speeds.notes, vllm.source))


def _step_table(floors: StepBytes, measured: TextgenMeasured, peft: PeftTimes | None) -> TableData:
    rows = [_step_row(times, floors, measured.rates) for times in measured.rows]
    notes: list[str] = []
    if measured.rates is not None:
        notes.append(
            "floor: weights, the step's adapters and KvCache read once over the measured copy rate, or their arithmetic"
            " over the measured rate of large products where that takes longer"
        )
    if peft is not None:
        others = len(_STEP_COLUMNS) - 2
        rows.append((PEFT_ROW, peft.seconds / peft.num_tokens * 1e3, *[None] * others))
        notes.append(
            f"decode ms of {PEFT_ROW}: its total time over its total tokens, including prefills; others: medians"
        )
    return TableData("steps", "Steps", _STEP_COLUMNS, rows, tuple(notes))


def _step_row(times: RowTimes, floors: StepBytes, rates: DeviceRates | None) -> tuple[Value, ...]:
    decodes, mixed = times.median.decode_steps, times.median.mixed_steps
    decode_ms = [step.duration_s * 1e3 for step in decodes]
    return (
        times.row.name,
        statistics.median(decode_ms) if decode_ms else None,
        statistics.quantiles(decode_ms, n=10)[-1] if len(decode_ms) > 1 else None,
        *_floor(decodes, floors, rates),
        statistics.median(step.duration_s * 1e3 for step in mixed) if mixed else None,
        len(decodes),
        len(mixed),
    )


def _floor(
    steps: Sequence[StepTime], floors: StepBytes, rates: DeviceRates | None
) -> tuple[float | None, float | None]:
    """The median floor of these steps in ms, and the median ratio of their times to it."""
    if rates is None or not steps:
        return None, None
    floor_s = [floors.floor_s(step, rates) for step in steps]
    over = [step.duration_s / floor for step, floor in zip(steps, floor_s, strict=True)]
    return statistics.median(floor_s) * 1e3, statistics.median(over)


def _notes(rows: Sequence[str]) -> tuple[str, ...]:
    """Notes on the rows that were measured."""
    notes = {
        "same_adapter_only": "same_adapter_only: Distinct, first come, first served, a batch of one adapter only,"
        " all adapters on the device already, as in distinct_50",
        "static": "static: Distinct in batches that start together and end with their longest request",
        "files": "files: Distinct, each adapter read from its PEFT folder on first use (page cache)",
        "filtered": f"filtered: the base alone, sampled with temperature {FILTERED.temperature}, top_k {FILTERED.top_k}"
        f" and top_p {FILTERED.top_p}",
        PEFT_ROW: f"{PEFT_ROW}: eager, not batched, one adapter for all of a few requests",
    }
    return tuple(note for name, note in notes.items() if name in rows)


def _facts(measured: TextgenMeasured, speed: dict[str, float]) -> dict[str, Value]:
    over = {
        **{f"batched / alone, {p}": (p.value, f"{p}_alone") for p in Population},
        "distinct / identical": ("distinct", "identical"),
        "distinct / backbone": ("distinct", "backbone"),
        **{f"{own} / {row}, the same requests": (own, row) for row, own in COUNTERPARTS.items()},
    }
    facts: dict[str, Value] = {name: ratio for name, rows in over.items() if (ratio := _ratio(speed, *rows))}
    if measured.rates is not None:
        facts["copy rate, TB/s"] = measured.rates.copy_bytes_per_s / 1e12
        facts["product rate, TFLOP/s"] = measured.rates.product_flop_per_s / 1e12
    if lags := {phase: _percentiles(lags_us) for phase, lags_us in measured.launch_lags_us.items() if len(lags_us) > 1}:
        facts |= {f"launch of the last rank after the leader's, {p}, µs": lags["launch"][p] for p in ("p50", "p99")}
        shown = (f"{phase} {lag['p50']:.0f} ({lag['p99']:.0f})" for phase, lag in lags.items())
        facts["the same by phase, p50 (p99), µs"] = ", ".join(shown)
    return facts


def _percentiles(values: Sequence[float]) -> dict[str, float]:
    percent = statistics.quantiles(values, n=100)
    return {f"p{p}": percent[p - 1] for p in (50, 99)}


def _ratio(speed: dict[str, float], over: str, under: str) -> float | None:
    """None if either was not measured."""
    return speed[over] / speed[under] if over in speed and under in speed else None


def _goals(speed: dict[str, float], steps: TableData) -> list[Goal]:
    measured = {
        "distinct_tokens_per_s": speed.get("distinct"),
        "backbone_tokens_per_s": speed.get("backbone"),
        "distinct_over_identical": _ratio(speed, "distinct", "identical"),
        "files_over_host": _ratio(speed, "files", "distinct_300"),
        "distinct_over_same_adapter_only": _ratio(speed, "distinct", "same_adapter_only"),
        "step_over_floor": by_row(steps, "over_floor").get("distinct"),
        "lora_ms": added_by_lora_ms(steps, "distinct"),
    }
    return [Goal(bound, measured[key]) for key, bound in goals().textgen.items()]


def _draw(figure: "Figure", speeds: TableData) -> None:
    """Draws bars of tokens/s, with vLLM's beside them if the table has them."""
    records = speeds.records
    figure.set_size_inches(9, 4.5)
    axes = figure.subplots()
    names = [str(record["row"]) for record in records]
    vllm = [record.get("vllm_tokens_per_s") for record in records]
    width = 0.4 if any(vllm) else 0.8
    series = [("Punica Serve", [record["tokens_per_s"] for record in records])]
    if any(vllm):
        series.append((f"vLLM {peers().systems['vllm'].version}", vllm))
    for number, (label, values) in enumerate(series):
        heights = [float(value or 0.0) for value in values]
        places = [place + number * width for place in range(len(names))]
        bars = axes.bar(places, heights, width, label=label)
        axes.bar_label(bars, [f"{height:,.0f}" if height else "" for height in heights], fontsize=7)
    axes.set_xticks(
        [place + (len(series) - 1) * width / 2 for place in range(len(names))], names, rotation=30, ha="right"
    )
    axes.set_ylabel("output tokens/s")
    axes.set_title("Text generation on one device")
    axes.legend()
