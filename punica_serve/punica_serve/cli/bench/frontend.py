"""`punica-serve bench frontend`."""

from functools import partial
from typing import Annotated, Literal

import typer

from punica_serve.cli.bench.common import DEFAULT_OUT, OutOption, measure


def command(
    api: Annotated[
        Literal["websocket", "http", "chat", "generate"],
        typer.Option(
            help="http, chat, generate: server-sent events of completions, of chat completions, of the native API."
        ),
    ] = "websocket",
    sockets: Annotated[int, typer.Option(min=1, max=65_536, help="Websockets.")] = 64,
    requests: Annotated[
        int,
        typer.Option(min=1, max=1_024, help="Requests on each websocket; others have a connection each."),
    ] = 8,
    gpus: Annotated[
        int, typer.Option(min=1, max=100_000, help="Simulated GPUs that run the requests, each with its own steps.")
    ] = 16,
    tokens_per_s: Annotated[float, typer.Option(min=1.0, max=1e9, help="Tokens per second, in total.")] = 20_000.0,
    prompt_tokens: Annotated[int, typer.Option(min=1, max=1_000, help="Token ids of each prompt.")] = 1,
    answer_tokens: Annotated[
        int, typer.Option(min=1, max=1_000, help="Tokens of each answer; its client then asks again.")
    ] = 900,
    adapters: Annotated[
        int, typer.Option(min=0, max=100_000, help="Adapters that requests take in turn; 0: the base model alone.")
    ] = 0,
    seconds: Annotated[float, typer.Option(min=0.1, max=86_400, help="Measured seconds.")] = 10.0,
    out: OutOption = DEFAULT_OUT,
) -> None:
    """Measure a frontend's cost per streamed token. Needs no GPU."""
    from punica_serve.bench.frontend.run import run
    from punica_serve.bench.frontend.settings import FrontendSettings

    lengths = (prompt_tokens, answer_tokens)
    settings = FrontendSettings(api, sockets, requests, gpus, tokens_per_s, seconds, *lengths, adapters)
    measure(partial(run, settings), out, refresh_per_s=2.0)
