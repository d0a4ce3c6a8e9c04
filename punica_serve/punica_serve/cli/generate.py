"""`punica-serve generate`: one prompt to a running cluster, streamed to the terminal."""

import asyncio
import contextlib
import json
import re
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from punica_serve.errors import ClusterUnavailable, ConfigError

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

OPEN_TIMEOUT_S = 10.0
#: Who presses Ctrl-C waits for nothing that is still on its way.
CLOSE_TIMEOUT_S = 1.0


def command(
    prompt: Annotated[str, typer.Argument(help="What the model continues.")],
    lora_id: Annotated[str | None, typer.Option(help="The LoRA model; the base model by default.")] = None,
    url: Annotated[str, typer.Option(help="A frontend of the cluster.")] = "http://127.0.0.1:8000",
    max_tokens: Annotated[int | None, typer.Option(help="Longest answer.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Draw from the likeliest tokens of this joint mass.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Draw from so many likeliest tokens; 0: from all.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same answer.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="Text that ends the answer; may be given again.")] = None,
) -> None:
    """Generate from a running cluster. The answer streams to stdout; Ctrl-C cancels the request."""
    options = {
        "lora_id": lora_id,
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "seed": seed,
        "stop": stop or None,
    }
    request = {"prompt": prompt, **{name: value for name, value in options.items() if value is not None}}
    asyncio.run(_stream_answer(url, request))


async def _stream_answer(url: str, request: dict[str, Any]) -> None:
    """Prints the answer as it comes. Leaving early, by Ctrl-C too, closes the socket, which cancels the request.

    Raises typer.Exit(1), its message printed, when the server refuses the request or breaks off.
    """
    from websockets.exceptions import ConnectionClosedError

    async with await _connect(url) as socket:
        await socket.send(json.dumps({"op": "generate", "request_id": "1", **request}))
        with contextlib.suppress(ConnectionClosedError):
            async for frame in socket:
                if _print_frame(json.loads(frame)):
                    return
    raise _failed("the server closed the connection before the answer's end")


def _print_frame(frame: dict[str, Any]) -> bool:
    """Whether it is the request's last frame."""
    if frame.get("error"):
        raise _failed(frame["error"]["message"])
    print(frame["text"], end="", flush=True)
    if frame["finish_reason"] is None:
        return False
    print()
    return True


async def _connect(url: str) -> "ClientConnection":
    """Raises ConfigError for a URL that is none, and ClusterUnavailable where no frontend answers."""
    from websockets.asyncio.client import connect
    from websockets.exceptions import InvalidURI, WebSocketException

    try:
        return await connect(_stream_url(url), proxy=None, open_timeout=OPEN_TIMEOUT_S, close_timeout=CLOSE_TIMEOUT_S)
    except (InvalidURI, ValueError) as error:
        raise ConfigError(f"--url {url!r} is not of the form http://HOST:PORT", param="--url") from error
    except (OSError, WebSocketException) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise ClusterUnavailable(
            f"no frontend answers at {url} ({reason}); `punica-serve up` starts a cluster, --url says where one is"
        ) from error


def _stream_url(url: str) -> str:
    """http(s)://... as ws(s)://... of the stream."""
    return re.sub("^http", "ws", url).rstrip("/") + "/v1/generate/stream"


def _failed(message: str) -> typer.Exit:
    print(f"punica-serve: {message}", file=sys.stderr)
    return typer.Exit(1)
