"""`punica-serve generate`: one prompt to a running cluster, streamed to the terminal."""

import asyncio
import contextlib
import json
from typing import Annotated, Any

import typer

from punica_serve.cli.options import DEFAULT_URL, KeyOption, UrlOption, check_text
from punica_serve.dialling import dial
from punica_serve.errors import RequestFailed


def command(
    prompt: Annotated[str, typer.Argument(help="What the model continues.")],
    lora_id: Annotated[str | None, typer.Option(help="The LoRA model; the base model by default.")] = None,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = None,
    max_tokens: Annotated[int | None, typer.Option(help="Longest answer.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Draw from the likeliest tokens of this joint mass.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Draw from so many likeliest tokens; 0: from all.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same answer.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="Text that ends the answer; may be given again.")] = None,
) -> None:
    """Generate from a running cluster. The answer streams to stdout; Ctrl-C cancels the request."""
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
    """Prints the answer as it comes. Leaving early, by Ctrl-C too, closes the socket, which cancels the request.

    Raises RequestFailed when the server refuses the request or breaks off.
    """
    from websockets.exceptions import ConnectionClosedError

    async with await dial(url, "/v1/generate/stream", key) as socket:
        await socket.send(json.dumps({"op": "generate", "request_id": "1", **request}))
        with contextlib.suppress(ConnectionClosedError):
            async for frame in socket:
                if _print_frame(json.loads(frame)):
                    return
    raise RequestFailed("the server closed the connection before the answer's end")


def _print_frame(frame: dict[str, Any]) -> bool:
    """Whether it is the request's last frame."""
    if frame.get("error"):
        raise RequestFailed(frame["error"]["message"])
    print(frame["text"], end="", flush=True)
    if frame["finish_reason"] is None:
        return False
    print()
    return True
