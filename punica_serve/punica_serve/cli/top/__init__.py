"""`punica-serve top`: the cluster on one screen of a terminal, live."""

import asyncio
import sys
from typing import Annotated

import typer

from punica_serve.cli.options import DEFAULT_URL, KeyOption, UrlOption
from punica_serve.errors import ConfigError

#: Frames a second that the frontend is asked for, by default.
PER_S = 1.0


def command(
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = None,
    per_s: Annotated[float, typer.Option(min=0.1, max=5, help="How often a second the screen changes.")] = PER_S,
    once: Annotated[bool, typer.Option("--once", help="Print how things are now, and end.")] = False,
) -> None:
    """Watch a running cluster: GPUs, queue, rates, latencies, adapters and what happens. q or Ctrl-C ends it."""
    from punica_serve.cli.top.shows import show_live, show_once

    if once:
        asyncio.run(show_once(url, key))
        return
    if not sys.stdout.isatty():
        raise ConfigError("top needs a terminal; `--once` prints how things are now", param="once")
    asyncio.run(show_live(url, key, per_s))
