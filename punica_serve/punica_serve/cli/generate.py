"""`punica-serve generate`: sends one prompt to a running cluster and streams the answer to the terminal."""

import asyncio
import contextlib
import json
from typing import Annotated, Any

import typer

from punica_serve.cli.options import DEFAULT_URL, KeyOption, UrlOption, check_text
from punica_serve.errors import RequestFailed
from punica_serve.links.dial import dial


def command(
    prompt: Annotated[str, typer.Argument(help="The text to continue.")],
    lora_id: Annotated[str | None, typer.Option(help="LoRA model; the base model by default.")] = None,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = None,
    max_tokens: Annotated[int | None, typer.Option(help="Longest answer.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Sampling temperature; 0 is greedy.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Sample from the most likely tokens with this total probability.")
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Sample from this many most likely tokens; 0 for all.")] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed; the same seed gives the same answer.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="Text that ends the answer; repeatable.")] = None,
) -> None:
    """Generate text on a running cluster. The answer streams to stdout; Ctrl-C cancels the request."""
    for text in (prompt, lora_id, *(stop or ())):
        check_text(text)
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
    asyncio.run(_stream_answer(url, key, request))


async def _stream_answer(url: str, key: str | None, request: dict[str, Any]) -> None:
    """Prints the answer as it arrives. Leaving early, also by Ctrl-C, closes the socket, which cancels the request.

    Raises RequestFailed when the server refuses the request or disconnects.
    """
    from websockets.exceptions import ConnectionClosedError

    async with await dial(url, "/v1/generate/stream", key) as socket:
        await socket.send(json.dumps({"op": "generate", "request_id": "1", **request}))
        with contextlib.suppress(ConnectionClosedError):
            async for frame in socket:
                if _print_frame(json.loads(frame)):
                    return
    raise RequestFailed("the server closed the connection before the end of the answer")


def _print_frame(frame: dict[str, Any]) -> bool:
    """Prints a frame. Returns whether it is the request's last one."""
    if frame.get("error"):
        raise RequestFailed(frame["error"]["message"])
    print(frame["text"], end="", flush=True)
    if frame["finish_reason"] is None:
        return False
    print()
    return True
