"""`punica-serve bench textgen`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from punica_serve.cli.options import DEFAULT_CONFIG, ConfigOption


def command(
    config: ConfigOption = DEFAULT_CONFIG,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where JSON and picture go.")] = Path("bench-results"),
    rank: Annotated[int, typer.Option(min=1, help="Rank of the random adapters.")] = 16,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Tokens of each prompt.")] = 32,
    output_tokens: Annotated[int, typer.Option(min=1, help="Tokens of each answer.")] = 64,
    concurrency: Annotated[int, typer.Option(min=2, help="Requests in flight of the batched cells.")] = 32,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; a figure is the median.")] = 5,
) -> None:
    """Tokens per second for Distinct, Uniform, Skewed and Identical adapters, one at a time and batched."""
    from punica_serve.bench import textgen_report as report
    from punica_serve.bench.textgen import Workload, run
    from punica_serve.config import load_config

    cluster = load_config(config)
    device = cluster.runner.devices[0]
    workload = Workload(rank, prompt_tokens, output_tokens, concurrency, rounds)
    console = Console()
    with Progress(console=console, transient=True) as progress:
        measurements = run(cluster.engine, workload, device, progress)
    report.print_table(measurements, console)
    out.mkdir(parents=True, exist_ok=True)
    report.write_json(out / "textgen.json", measurements, workload, device)
    report.draw(out / "textgen.png", measurements)
    console.print(f"wrote {out / 'textgen.json'} and {out / 'textgen.png'}")
