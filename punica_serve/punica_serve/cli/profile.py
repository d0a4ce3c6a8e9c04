"""`punica-serve profile`: measures this device's speed, for simulated GPUs and placements by cost."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from punica_serve.cli.bench.engine_options import (
    REFRESH_PER_S,
    EngineConfigOption,
    EngineDeviceOption,
    RankOption,
    ShapeOption,
    TensorParallelOption,
    subject_of,
)
from punica_serve.numbers import MAX_COUNT

if TYPE_CHECKING:
    from punica_serve.bench.subject import Subject
    from punica_serve.performance.lora_fit import LoraFit


def command(
    config: EngineConfigOption = None,
    shape: ShapeOption = None,
    device: EngineDeviceOption = None,
    tensor_parallel: TensorParallelOption = 1,
    rank: RankOption = 16,
    largest: Annotated[
        int | None,
        typer.Option(
            "--largest", min=1, max=MAX_COUNT, help="Largest batch; the config's `max_batch_size` by default."
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The profile, in YAML.")] = Path("profile.yaml"),
) -> None:
    """Measure prefill and decode steps, what mixes of ranks add, and adapter loads of one rank.

    `simulation.profile` and `scheduler.profile` read the file. The samples to which the model of LoRA was fitted are
    written beside it, and with the `bench` extra a picture of the fit.
    """
    from rich.console import Console

    from punica_serve.bench.profile import measure_profile
    from punica_serve.cli.progress_lines import shown_progress
    from punica_serve.performance.lora_fit import samples_file, write_samples
    from punica_serve.performance.profile import write_profile
    from punica_serve.process.outputs import check_file, writing

    check_file(out)
    console = Console()
    subject = _with_batch(subject_of(config, shape, device, tensor_parallel=tensor_parallel), largest)
    with shown_progress(console, refresh_per_s=REFRESH_PER_S) as progress:
        measured = measure_profile(subject, rank, progress)
    profile, samples = measured.profile, samples_file(out)
    with writing(out):
        write_profile(profile, out)
    with writing(samples):
        write_samples(measured.samples, samples)
    console.print(f"{profile.name}: a decode step takes {profile.decode.ms[0][0]:g} ms", highlight=False)
    for line in _fit_lines(measured.fit):
        console.print(line, highlight=False, soft_wrap=True)
    console.print(f"wrote {out} and {samples}", soft_wrap=True, highlight=False)
    try:
        from punica_serve.bench.fit_picture import draw_fit

        picture = out.with_suffix(".png")
        with writing(picture):
            draw_fit(measured.samples, measured.fit, picture, title=profile.name)
        console.print(f"wrote {picture}", soft_wrap=True, highlight=False)
    except ModuleNotFoundError:
        console.print("no picture: install the `bench` extra for one", highlight=False)


def _with_batch(subject: "Subject", largest: int | None) -> "Subject":
    """The subject with another largest batch."""
    from dataclasses import replace

    if largest is None:
        return subject
    return replace(subject, config=subject.config.model_copy(update={"max_batch_size": largest}))


def _fit_lines(fit: "LoraFit") -> list[str]:
    """How well the models fit, with what is expected of them (the paper's R², and more of ours)."""
    lines = [
        f"LoRA by pages of different adapters, rows and ranks: R² {fit.r_squared:.4f} (goal 0.99)",
        f"LoRA by rows x highest rank (padded): R² {fit.padded.r_squared:.4f} (goal 0.96)",
        f"LoRA by sum of ranks (all adapters differ): R² {fit.unpadded.r_squared:.4f} (goal 0.96)",
    ]
    if fit.held_out_p95_error is not None:
        lines.insert(
            1, f"  steps of mixes that were not fitted: p95 of the error {fit.held_out_p95_error:.1%} (goal 5%)"
        )
    return lines
