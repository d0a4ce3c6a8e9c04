"""`punica-serve bench hot-reload`."""

from functools import partial
from typing import Annotated

import typer

from punica_serve.cli.bench.common import DEFAULT_OUT, OutOption, measure
from punica_serve.cli.options import DEFAULT_CONFIG, ConfigOption


def command(
    config: ConfigOption = DEFAULT_CONFIG,
    rate: Annotated[float, typer.Option(min=0.1, max=1e6, help="Requests per second, over five adapters.")] = 100.0,
    in_flight: Annotated[
        int, typer.Option(min=1, max=65_536, help="Concurrent requests; further ones are sent late.")
    ] = 64,
    reloads: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="How often one of the adapters is registered again.")
    ] = 200,
    every: Annotated[float, typer.Option(min=0.0, max=86_400, help="Seconds from one reload to the next.")] = 1.0,
    out: OutOption = DEFAULT_OUT,
) -> None:
    """Check that answers stay consistent while an adapter changes under load, on a demo cluster that it starts."""
    from punica_serve.bench.hot_reload.run import HotReloadSettings, run

    measure(partial(run, HotReloadSettings(config, rate, in_flight, reloads, every)), out, refresh_per_s=2.0)
