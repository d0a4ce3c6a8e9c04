"""The report of `bench batching`: prefill and decode against batch size, the knee of the curve, and figure 1.

It also tells the batch that `engine.max_batch_size: auto` takes by these steps.
"""

from collections.abc import Sequence
from dataclasses import asdict
from itertools import takewhile
from typing import TYPE_CHECKING

from rich.progress import Progress

from punica_serve.bench.batching import BatchingMeasured, BatchingSettings, DecodeTime, run
from punica_serve.bench.goals import GOAL_SHAPE
from punica_serve.bench.reference_figures import peers
from punica_serve.bench.report import Column, Report, TableData, Value, machine
from punica_serve.bench.subject import Subject
from punica_serve.performance.auto_batch import AUTO_SIZES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Doubling a batch is worthwhile if it multiplies the tokens/s by at least this.
KNEE_GAIN = 1.5

_PREFILL_COLUMNS = (
    Column("num_prompt_tokens", "prompt tokens", ",d"),
    Column("num_prompts", "prompts", ",d"),
    Column("latency_ms", "latency ms", ",.1f"),
    Column("tokens_per_s", "prompt tokens/s", ",.0f"),
)

_DECODE_COLUMNS = (
    Column("adapters", "adapters"),
    Column("num_context_tokens", "context", ",d"),
    Column("mean_context_tokens", "measured", ",.1f"),
    Column("batch_size", "batch", ",d"),
    Column("step_ms", "step ms", ".2f"),
    Column("tokens_per_s", "tokens/s", ",.0f"),
    Column("ms_per_token", "ms / token", ".3f"),
)
_VLLM_COLUMN = Column("vllm_step_ms", "vLLM step ms", ".1f")

_CONTEXT_NOTE = "measured: KvCache tokens per request, averaged over the batch and its timed steps"


def measure_all(subject: Subject, settings: BatchingSettings, progress: Progress) -> Report:
    """Measures all batches. Raises RequestFailed if any request fails."""
    return make_report(subject, settings, run(subject, settings, progress))


def make_report(subject: Subject, settings: BatchingSettings, measured: BatchingMeasured) -> Report:
    """The tables, knees and picture of one run."""
    with_vllm = subject.on_gpu and subject.title == GOAL_SHAPE
    target_ms = subject.config.target_step_ms
    auto = auto_point(settings, measured.decodes, target_ms)
    return Report(
        name="batching",
        machine=machine(str(subject.device)),
        settings={**asdict(settings), "model": subject.title},
        tables=[_prefill_table(subject, measured), _decode_table(settings, measured.decodes, with_vllm=with_vllm)],
        figures={"": lambda figure: _draw(figure, measured, auto)},
        facts=_facts(settings, measured.decodes, target_ms, auto),
    )


def auto_point(settings: BatchingSettings, decodes: Sequence[DecodeTime], target_step_ms: float) -> DecodeTime | None:
    """The batch that `max_batch_size: auto` takes by measured steps, if memory allows; None if it was not measured.

    As by a profile: the largest of its sizes whose step and those of all smaller ones keep the target, or the smallest.
    """
    curve = _curves(decodes).get(("distinct", settings.auto_context or 0), [])
    sizes = [time for time in curve if time.batch_size in AUTO_SIZES]
    fitting = list(takewhile(lambda time: time.step_s * 1e3 <= target_step_ms, sizes))
    return fitting[-1] if fitting else next(iter(sizes), None)


def _facts(
    settings: BatchingSettings, decodes: Sequence[DecodeTime], target_step_ms: float, auto: DecodeTime | None
) -> dict[str, Value]:
    worthwhile = f"batch beyond which doubling brings < {KNEE_GAIN} x"
    facts: dict[str, Value] = {
        f"{worthwhile}, adapters {adapters}, context {context}": knee(times)
        for (adapters, context), times in _curves(decodes).items()
    }
    load = f"{target_step_ms:g} ms, adapters distinct, context {settings.auto_context}"
    facts[f"batch of `max_batch_size: auto` by these steps, {load}"] = auto.batch_size if auto is not None else None
    return facts


def knee(times: Sequence[DecodeTime]) -> int | None:
    """The largest batch for which doubling was still worthwhile: beyond it, latency buys little throughput.

    None unless two batch sizes differ by a factor of two.
    """
    speed = {time.batch_size: time.batch_size / time.step_s for time in times}
    doubled = [size for size in sorted(speed) if size % 2 == 0 and size // 2 in speed]
    for size in doubled:
        if speed[size] < KNEE_GAIN * speed[size // 2]:
            return size // 2
    return doubled[-1] if doubled else None


def _curves(decodes: Sequence[DecodeTime]) -> dict[tuple[str, int], list[DecodeTime]]:
    """By adapters and context, the smallest batch first."""
    curves: dict[tuple[str, int], list[DecodeTime]] = {}
    for time in sorted(decodes, key=lambda time: time.batch_size):
        curves.setdefault((time.adapters, time.num_context_tokens), []).append(time)
    return curves


def _prefill_table(subject: Subject, measured: BatchingMeasured) -> TableData:
    rows: list[tuple[Value, ...]] = [
        (
            time.num_prompt_tokens,
            time.num_prompts,
            time.latency_s * 1e3,
            time.num_prompts * time.num_prompt_tokens / time.latency_s,
        )
        for time in measured.prefills
    ]
    return TableData("prefill", f"batching: {subject.title}, prefill", _PREFILL_COLUMNS, rows)


def _decode_table(settings: BatchingSettings, decodes: Sequence[DecodeTime], *, with_vllm: bool) -> TableData:
    rows: list[tuple[Value, ...]] = []
    for curve in _curves(decodes).values():
        for time in curve:
            per_s = time.batch_size / time.step_s
            batch = (time.adapters, time.num_context_tokens, time.mean_context_tokens, time.batch_size)
            row = (*batch, time.step_s * 1e3, per_s, 1e3 / per_s)
            rows.append((*row, _vllm_step_ms(time)) if with_vllm else row)
    title = f"Decode steps, adapters of rank {settings.rank}"
    if with_vllm:
        return TableData(
            "decode", title, (*_DECODE_COLUMNS, _VLLM_COLUMN), rows, (_CONTEXT_NOTE, peers().batching.source)
        )
    return TableData("decode", title, _DECODE_COLUMNS, rows, (_CONTEXT_NOTE,))


def _vllm_step_ms(time: DecodeTime) -> float | None:
    vllm = peers().batching
    if time.num_context_tokens != vllm.num_context_tokens:
        return None
    return vllm.step_ms.get(time.adapters, {}).get(time.batch_size)


def _draw(figure: "Figure", measured: BatchingMeasured, auto: DecodeTime | None) -> None:
    """The paper's figure 1: prefill latency grows with the batch, decode latency hardly does. And tokens/s."""
    figure.set_size_inches(13, 4)
    prefill_axes, decode_axes, speed_axes = figure.subplots(1, 3)
    for num_tokens in sorted({time.num_prompt_tokens for time in measured.prefills}):
        times = [time for time in measured.prefills if time.num_prompt_tokens == num_tokens]
        latencies_ms = [time.latency_s * 1e3 for time in times]
        prefill_axes.plot([time.num_prompts for time in times], latencies_ms, "o-", label=f"{num_tokens} tokens")
    for (adapters, context), curve in _curves(measured.decodes).items():
        label = f"{context} tokens" if adapters == "none" else f"{context} tokens, {adapters} adapters"
        sizes = [time.batch_size for time in curve]
        decode_axes.plot(sizes, [time.step_s * 1e3 for time in curve], "o-", label=label)
        speed_axes.plot(sizes, [time.batch_size / time.step_s for time in curve], "o-", label=label)
    if auto is not None:
        label = f"`auto`: {auto.batch_size}"
        decode_axes.plot(auto.batch_size, auto.step_s * 1e3, "k*", markersize=14, label=label)
        speed_axes.plot(auto.batch_size, auto.batch_size / auto.step_s, "k*", markersize=14, label=label)
    panels = ((prefill_axes, "Prefill", "ms"), (decode_axes, "Decode step", "ms"), (speed_axes, "Decode", "tokens/s"))
    for axes, title, unit in panels:
        axes.set_title(title)
        axes.set_xlabel("batch size")
        axes.set_ylabel(unit)
        axes.set_ylim(bottom=0)
        axes.legend(fontsize=8)
