"""`punica-serve top`: a live view of the cluster in a terminal."""

import asyncio
import sys
from typing import Annotated

import typer

from punica_serve.cli.options import DEFAULT_URL, KeyOption, UrlOption
from punica_serve.errors import ConfigError

#: Default frames per second requested from the frontend.
PER_S = 1.0


def command(
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = None,
    per_s: Annotated[float, typer.Option(min=0.1, max=5, help="Updates of the screen per second.")] = PER_S,
    once: Annotated[bool, typer.Option("--once", help="Print the current state and exit.")] = False,
) -> None:
    """Watch a running cluster: GPUs, queue, rates, latencies, adapters and events. q or Ctrl-C ends it."""
    from punica_serve.cli.top.shows import show_live, show_once

    if once:
        asyncio.run(show_once(url, key))
        return
    if not sys.stdout.isatty():
        raise ConfigError("top needs a terminal; use `--once` to print the current state", param="once")
    asyncio.run(show_live(url, key, per_s))
