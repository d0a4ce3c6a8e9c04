"""`punica-serve profile`: measures this device's speed, for simulated GPUs."""

from pathlib import Path
from typing import Annotated

import typer

from punica_serve.cli.bench.engine_options import (
    REFRESH_PER_S,
    EngineConfigOption,
    EngineDeviceOption,
    RankOption,
    ShapeOption,
    subject_of,
)


def command(
    config: EngineConfigOption = None,
    shape: ShapeOption = None,
    device: EngineDeviceOption = None,
    rank: RankOption = 16,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The profile, in YAML.")] = Path("profile.yaml"),
) -> None:
    """Measure prefill and decode steps, LoRA's share and adapter loads; `simulation.profile` reads the file."""
    from rich.console import Console
    from rich.progress import Progress

    from punica_serve.bench.profile import measure_profile
    from punica_serve.performance.profile import write_profile
    from punica_serve.process.outputs import check_file, writing

    check_file(out)
    console = Console()
    subject = subject_of(config, shape, device)
    with Progress(console=console, transient=True, refresh_per_second=REFRESH_PER_S) as progress:
        profile = measure_profile(subject, rank, progress)
    with writing(out):
        write_profile(profile, out)
    console.print(f"{profile.name}: a decode step takes {profile.decode.ms[0][0]:g} ms", highlight=False)
    console.print(f"wrote {out}", soft_wrap=True, highlight=False)
