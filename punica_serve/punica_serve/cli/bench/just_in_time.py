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
    uploads: Annotated[int, typer.Option(min=1, help="Adapters, one after the other.")] = 20,
    streams: Annotated[int, typer.Option(min=1, max=1_024, help="Other requests that are being answered.")] = 8,
    rank: Annotated[int, typer.Option(min=1, help="Of the adapters, on all linear modules.")] = 16,
    rest: Annotated[float, typer.Option(min=0.1, help="Seconds without uploads, before each of them.")] = 0.5,
    out: OutOption = DEFAULT_OUT,
) -> None:
    """How soon an adapter that the cluster has never seen gives its first token, and what others notice of that."""
    from punica_serve.bench.just_in_time import JustInTimeSettings, run

    settings = JustInTimeSettings(url, config, uploads, streams, rank, rest)
    measure(partial(run, settings, key), out)
