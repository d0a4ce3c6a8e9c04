"""Waits until a cluster serves, shows what it is waiting for, and prints how to use it."""

import asyncio
import json
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl

    import httpx
    from rich.console import Console

    from punica_serve.config.tls_section import HttpsConfig

POLL_INTERVAL_S = 0.05
POLL_TIMEOUT_S = 5.0
#: Number of adapters named in the banner.
MAX_SHOWN_ADAPTERS = 8


_UNAUTHORIZED = 401


class _NotReady(Exception):
    """The cluster is not ready; the message says what it waits for."""


def verifying(https: "HttpsConfig | None") -> "ssl.SSLContext | bool":
    """For httpx: accepts a local frontend's own certificate, whatever names it is for."""
    from punica_serve.links.https_context import own_context

    return own_context(https) if https else True


async def until_ready(urls: Sequence[str], console: "Console", https: "HttpsConfig | None" = None) -> list[str]:
    """Waits until every frontend serves the models. Returns their names, the base first; none if listing them needs a
    key.
    """
    import httpx

    models: list[str] = []
    for url in urls:
        verify = verifying(https)
        async with httpx.AsyncClient(base_url=url, timeout=POLL_TIMEOUT_S, verify=verify, trust_env=False) as client:
            models = await models_once_served(client, console)
    return models


async def models_once_served(client: "httpx.AsyncClient", console: "Console") -> list[str]:
    """Waits until the client's frontend serves the models. Returns their names, the base first.

    Meanwhile shows what it is waiting for: beside a spinner on a terminal, otherwise a line for each change.
    """
    from rich.text import Text

    shown = None
    with console.status("starting") as status:
        while True:
            try:
                return await _models(client)
            except _NotReady as error:
                missing = str(error)
            if missing != shown:
                status.update(Text(missing))
                if not console.is_terminal:
                    console.print(missing, markup=False, soft_wrap=True)
                shown = missing
            await asyncio.sleep(POLL_INTERVAL_S)


async def _models(client: "httpx.AsyncClient") -> list[str]:
    """Raises _NotReady. A frontend that has answered may still be gone a moment later."""
    import httpx

    try:
        ready = await client.get("/ready")
        if not ready.is_success:
            raise _NotReady(ready.json()["error"]["message"])
        models = await client.get("/v1/models")
        if models.status_code == _UNAUTHORIZED:
            return []
        return [model["id"] for model in models.json()["data"]]
    except httpx.TransportError:
        raise _NotReady("waiting for the frontend") from None
    except (ValueError, KeyError, TypeError):
        raise _NotReady(
            f"the server at {client.base_url} is not a frontend of Punica Serve; choose another port"
        ) from None


def print_banner(urls: Sequence[str], models: Sequence[str], console: "Console") -> None:
    """Without ``models``, requests need an API key."""
    url, *more_urls = urls
    console.print(f"[bold green]Punica Serve is ready[/]: {url}", soft_wrap=True)
    console.print(f"  dashboard   {url}/dashboard\n  all routes  {url}/docs", soft_wrap=True)
    console.print(
        "".join(f"  also at     {other}\n" for other in more_urls)
        + _shown_models(models)
        + f"Try it:\n  {_example(url, models)}\nCtrl-C stops it.",
        soft_wrap=True,
        markup=False,
    )


def _shown_models(models: Sequence[str]) -> str:
    if not models:
        return "  requests need an API key\n"
    base, *adapters = models
    return f"  base model  {base}\n  adapters    {_shown(adapters)}\n"


def _example(url: str, models: Sequence[str]) -> str:
    body = json.dumps({"prompt": "42", "lora_id": models[1] if len(models) > 1 else None})
    key = "" if models else "-H 'authorization: Bearer YOUR_KEY' "
    return f"curl -s {url}/v1/generate {key}-H 'content-type: application/json' -d {shlex.quote(body)}"


def _shown(adapters: Sequence[str]) -> str:
    """The first adapters; a cluster may serve thousands."""
    more = f" and {len(adapters) - MAX_SHOWN_ADAPTERS} more" if len(adapters) > MAX_SHOWN_ADAPTERS else ""
    return (", ".join(adapters[:MAX_SHOWN_ADAPTERS]) or "none") + more
