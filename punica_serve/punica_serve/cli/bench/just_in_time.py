"""`punica-serve bench just-in-time`."""

from functools import partial
from typing import Annotated

import typer

from punica_serve.cli.bench.common import DEFAULT_OUT, OutOption, measure
from punica_serve.cli.options import DEFAULT_CONFIG, DEFAULT_URL, ConfigOption, KeyOption, UrlOption


def command(
    url: UrlOption = DEFAULT_URL,
    config: ConfigOption = DEFAULT_CONFIG,
    key: KeyOption = None,
    uploads: Annotated[int, typer.Option(min=1, max=1_000_000, help="Adapters to upload, one after the other.")] = 20,
    streams: Annotated[int, typer.Option(min=1, max=1_024, help="Other requests that run meanwhile.")] = 8,
    rank: Annotated[int, typer.Option(min=1, max=1_024, help="Rank of the adapters, on all linear modules.")] = 16,
    rest: Annotated[float, typer.Option(min=0.1, max=86_400, help="Seconds without uploads before each upload.")] = 0.5,
    out: OutOption = DEFAULT_OUT,
) -> None:
    """Measure the time from uploading a new adapter to its first token, and the effect on other requests."""
    from punica_serve.bench.just_in_time import JustInTimeSettings, run

    settings = JustInTimeSettings(url, config, uploads, streams, rank, rest)
    measure(partial(run, settings, key), out)
