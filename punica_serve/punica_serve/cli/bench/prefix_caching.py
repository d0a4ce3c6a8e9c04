"""`punica-serve bench prefix-caching`."""

from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import Progress

from punica_serve.cli.bench.common import DEFAULT_OUT, OutOption, measure
from punica_serve.cli.bench.engine_options import (
    REFRESH_PER_S,
    EngineConfigOption,
    EngineDeviceOption,
    RankOption,
    ShapeOption,
    subject_of,
)

if TYPE_CHECKING:
    from punica_serve.bench.report import Report


def command(
    config: EngineConfigOption = None,
    shape: ShapeOption = None,
    device: EngineDeviceOption = None,
    groups: Annotated[
        int, typer.Option(min=1, max=10_000, help="Groups, each with an adapter and a prefix of its own.")
    ] = 8,
    group_size: Annotated[int, typer.Option(min=2, max=10_000, help="Requests of a group.")] = 8,
    prefix_tokens: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="Tokens that a group's prompts share.")
    ] = 1000,
    output_tokens: Annotated[int, typer.Option(min=1, max=1_000_000, help="Tokens of each answer.")] = 100,
    gap_ms: Annotated[
        float, typer.Option(min=0, max=60_000, help="Milliseconds between groups, or members of a group.")
    ] = 50.0,
    batch_size: Annotated[int, typer.Option(min=1, max=1_024, help="Requests in a step.")] = 64,
    rounds: Annotated[
        int, typer.Option(min=1, max=1_000, help="Rounds of each load, with caching off and on in turn.")
    ] = 3,
    rank: RankOption = 16,
    out: OutOption = DEFAULT_OUT,
) -> None:
    """Measure groups of requests with one system prompt, with prefix caching off and on."""
    from punica_serve.bench.prefix_caching import PrefixCachingSettings

    settings = PrefixCachingSettings(
        num_groups=groups,
        group_size=group_size,
        prefix_tokens=prefix_tokens,
        output_tokens=output_tokens,
        gap_s=gap_ms / 1e3,
        batch_size=batch_size,
        rank=rank,
        rounds=rounds,
    )
    subject = subject_of(config, shape, device)

    def benchmark(progress: Progress) -> "Report":
        from punica_serve.bench.prefix_caching_report import measure_all

        return measure_all(subject, settings, progress)

    measure(benchmark, out, REFRESH_PER_S)
