"""`punica-serve top`: a live view of the cluster in a terminal.

frames.py       the frames of /v1/cluster/watch, with reconnects
state.py        what they tell: the cluster, its events, and the columns of the heat map (heat_columns.py)
display.py      what the terminal can show, and the viewer's choices
screen.py       all lines
gpu_table.py    the rows of gpu_rows.py: the heat map (heat_map.py), and figures beside it (gpu_figures.py)
adapter_rows.py, event_kinds.py   the parts below
terminal.py, keys.py   the terminal
"""

import asyncio
import sys
from typing import Annotated

import typer

from punica_serve.cli.options import DEFAULT_URL, KeyOption, UrlOption
from punica_serve.cli.top.display import Order
from punica_serve.errors import ConfigError

#: Default frames per second requested from the frontend.
PER_S = 1.0


def command(
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = None,
    per_s: Annotated[float, typer.Option(min=0.1, max=5, help="Updates of the screen per second.")] = PER_S,
    sort: Annotated[Order, typer.Option(help="GPUs' order: the last minute's busiest first, or by name.")] = Order.BUSY,
    once: Annotated[bool, typer.Option("--once", help="Print the current state and exit.")] = False,
) -> None:
    """Watch a running cluster: GPUs, queue, rates, latencies, adapters and events. q or Ctrl-C ends it."""
    from punica_serve.cli.top.terminal import show_live, show_once

    if once:
        asyncio.run(show_once(url, key, sort))
        return
    if not sys.stdout.isatty():
        raise ConfigError("top needs a terminal; use `--once` to print the current state", param="once")
    asyncio.run(show_live(url, key, per_s, sort))
