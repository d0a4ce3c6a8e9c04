"""Shows the screen in a terminal, once or until it is closed."""

import asyncio
import signal
from contextlib import aclosing

from rich.console import Console
from rich.live import Live

from punica_serve.cli.top.display import Display, Order
from punica_serve.cli.top.frames import watched
from punica_serve.cli.top.keys import on_key
from punica_serve.cli.top.screen import screen
from punica_serve.cli.top.state import State
from punica_serve.errors import ClusterUnavailable

#: Time limit for the first frame with the cluster's state.
FIRST_TIMEOUT_S = 10.0
#: rich's names of terminals with at least 256 colours.
_MANY_COLORS = {"256", "truecolor"}


async def show_once(url: str, key: str | None, order: Order) -> None:
    """Prints the state once. Raises what ``watched`` does, and ClusterUnavailable if the scheduler can't be reached."""
    console, state = Console(), State()
    try:
        async with asyncio.timeout(FIRST_TIMEOUT_S), aclosing(watched(url, key, 1.0)) as frames:
            async for frame in frames:
                if state.take(frame):
                    break
    except TimeoutError:
        raise ClusterUnavailable(
            f"{url} sent no state of the cluster within {FIRST_TIMEOUT_S:g} s; check that its scheduler runs"
        ) from None
    if state.trouble:
        raise ClusterUnavailable(state.trouble)
    console.print(screen(state, url, _display(console, None, order)))


async def show_live(url: str, key: str | None, per_s: float, order: Order) -> None:
    """Shows the screen until q, Ctrl-C or SIGTERM. Raises what ``watched`` does, after restoring the terminal."""
    left = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, left.set)
    with on_key(b"q", left.set), Live(console=Console(), screen=True, auto_refresh=False) as live:
        watching = asyncio.create_task(_watch(url, key, per_s, order, live))
        leaving = asyncio.create_task(left.wait())
        try:
            await asyncio.wait((watching, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended = watching.done()
            watching.cancel()
            leaving.cancel()
            await asyncio.wait((watching, leaving))
    if ended:
        watching.result()


async def _watch(url: str, key: str | None, per_s: float, order: Order, live: Live) -> None:
    state = State()
    async with aclosing(watched(url, key, per_s)) as frames:
        async for frame in frames:
            if state.take(frame):
                console = live.console
                live.update(screen(state, url, _display(console, console.height, order)), refresh=True)


def _display(console: Console, height: int | None, order: Order) -> Display:
    has_colors = console.color_system in _MANY_COLORS and not console.no_color
    return Display(console.width, height, console.options.ascii_only, has_colors, order)
