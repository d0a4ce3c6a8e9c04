"""`punica-serve adapters`: manages the LoRA models of a running cluster over its HTTP API.

client.py    the HTTP API with a key; errors become one line
sending.py   sends an adapter: a URI, an archive or a folder
tables.py    tables of adapters
verify.py    checks a folder on this machine, without a cluster
parity.py    compares a folder in our engine and in PEFT; the only module here that loads torch
"""

import sys
import time
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from punica_serve.cli.adapters.verify import verify
from punica_serve.cli.options import DEFAULT_URL, KeyOption, UrlOption, check_text, check_texts

if TYPE_CHECKING:
    from punica_serve.cli.adapters.client import AdapterClient

#: Polling interval of a deletion that takes longer.
POLL_S = 1.0

app = typer.Typer(name="adapters", help="Register, list and remove LoRA models.", no_args_is_help=True)
app.command("verify")(verify)

Name = Annotated[str, typer.Argument(callback=check_text, help="The adapter's name; TENANT/NAME for another tenant's.")]


@app.command("add")
def add(
    name: Name,
    source: Annotated[
        str, typer.Argument(help="A URI that the cluster fetches, or a local PEFT folder, .zip, .tar or .tar.gz.")
    ],
    pin: Annotated[bool, typer.Option("--pin", help="Keep it in the host memory of every runner.")] = False,
    prefetch: Annotated[bool, typer.Option("--prefetch", help="Load it on all GPUs at once.")] = False,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = None,
) -> None:
    """Register an adapter, or a new version of it. Running requests finish on their version."""
    from punica_serve.cli.adapters.sending import register

    with _client(url, key) as client:
        adapter = register(client, name, source)
        if pin:
            client.post(_route(name, "pin"))
        if prefetch:
            client.post(_route(name, "prefetch"), {})
    print(f"{adapter['full_name']} version {adapter['version']}: {adapter['digest']}")
    for shadowed in adapter["shadows"]:
        owner, short = str(adapter["full_name"]).split("/")
        print(f"{shadowed} has the same short name: for tenant {owner}, {short!r} now means this one", file=sys.stderr)


@app.command("list")
def list_adapters(url: UrlOption = DEFAULT_URL, key: KeyOption = None) -> None:
    """List the adapters that you may use, and where they are loaded."""
    from rich.console import Console

    from punica_serve.cli.adapters.tables import adapter_table

    with _client(url, key) as client:
        Console(highlight=False).print(adapter_table(client.all_adapters()))


@app.command("show")
def show(name: Name, url: UrlOption = DEFAULT_URL, key: KeyOption = None) -> None:
    """Show everything about an adapter, as JSON."""
    import json

    with _client(url, key) as client:
        print(json.dumps(client.get(_route(name)), indent=2))


@app.command("remove")
def remove(
    name: Name,
    wait_s: Annotated[float, typer.Option(min=0, help="How long to wait until no GPU, host or disk has it.")] = 60.0,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = None,
) -> None:
    """Remove an adapter with all its versions. New requests can't use it; running ones finish first."""
    with _client(url, key) as client:
        deadline_s = time.monotonic() + wait_s
        deletion = client.delete(_route(name), {"wait_s": min(wait_s, 5.0)})
        shared_with = deletion.get("shared_with")
        while deletion["status"] != "deleted" and time.monotonic() < deadline_s:
            time.sleep(POLL_S)
            deletion = client.get(deletion["status_url"])
    if shared_with:
        print(f"{name} is removed; its bytes stay, which these adapters have too: {', '.join(shared_with)}")
    elif deletion["status"] == "deleted":
        print(f"{name} is removed everywhere")
    else:
        print(f"{name} is removed; its memory is freed when nothing uses it any more; see {deletion['status_url']}")


@app.command("pin")
def pin(name: Name, url: UrlOption = DEFAULT_URL, key: KeyOption = None) -> None:
    """Keep an adapter in the host memory of every runner."""
    with _client(url, key) as client:
        client.post(_route(name, "pin"))
    print(f"{name} is pinned")


@app.command("unpin")
def unpin(name: Name, url: UrlOption = DEFAULT_URL, key: KeyOption = None) -> None:
    """Let an adapter leave host memory again when others need the space."""
    with _client(url, key) as client:
        client.post(_route(name, "unpin"))
    print(f"{name} is no longer pinned")


@app.command("prefetch")
def prefetch(
    name: Name,
    gpu: Annotated[
        list[str] | None,
        typer.Option(callback=check_texts, help="A GPU, by name or UUID; repeatable. All by default."),
    ] = None,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = None,
) -> None:
    """Load an adapter on GPUs before a request asks for it."""
    with _client(url, key) as client:
        client.post(_route(name, "prefetch"), {"gpus": gpu} if gpu else {})
    print(f"{name} is being loaded")


def _route(name: str, *action: str) -> str:
    """The route of an adapter, percent-encoded: the frontend refuses invalid names, instead of reading up to a question
    mark.
    """
    return "/".join(("/v1/adapters", quote(name, safe="/:"), *action))


def _client(url: str, key: str | None) -> "AdapterClient":
    from punica_serve.cli.adapters.client import AdapterClient

    return AdapterClient(url, key)
