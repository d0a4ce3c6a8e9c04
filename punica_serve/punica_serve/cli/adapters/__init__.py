"""`punica-serve adapters`: the LoRA models of a running cluster, over its HTTP API.

client.py    the API with a key, and its refusals in one line
sending.py   what is sent to register an adapter: a URI, an archive or a folder
tables.py    adapters as people read them
verify.py    a folder, checked on this machine without any cluster
parity.py    the same folder in our engine and in PEFT: the only file here that loads torch
"""

import sys
import time
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from punica_serve.cli.adapters.verify import verify
from punica_serve.cli.options import DEFAULT_URL, KeyOption, UrlOption, check_text

if TYPE_CHECKING:
    from punica_serve.cli.adapters.client import AdapterClient

#: Between two looks at a deletion that takes longer.
POLL_S = 1.0

app = typer.Typer(name="adapters", help="Register, list and remove LoRA models.", no_args_is_help=True)
app.command("verify")(verify)

Name = Annotated[str, typer.Argument(callback=check_text, help="The adapter's name; TENANT/NAME for another tenant's.")]


@app.command("add")
def add(
    name: Name,
    source: Annotated[
        str, typer.Argument(help="A URI that the cluster fetches, or a PEFT folder, .zip, .tar or .tar.gz of yours.")
    ],
    pin: Annotated[bool, typer.Option("--pin", help="Keep it in the host memory of every runner.")] = False,
    prefetch: Annotated[bool, typer.Option("--prefetch", help="Bring it to all GPUs at once.")] = False,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = None,
) -> None:
    """Register an adapter, or a new version of it. Requests that run finish on the version they began with."""
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
        print(f"{shadowed} has the same short name: to tenant {owner}, {short!r} now is this one", file=sys.stderr)


@app.command("list")
def list_adapters(url: UrlOption = DEFAULT_URL, key: KeyOption = None) -> None:
    """List the adapters that you may use, and where they are."""
    from rich.console import Console

    from punica_serve.cli.adapters.tables import adapter_table

    with _client(url, key) as client:
        Console(highlight=False).print(adapter_table(client.all_adapters()))


@app.command("show")
def show(name: Name, url: UrlOption = DEFAULT_URL, key: KeyOption = None) -> None:
    """Show all there is to know of an adapter, as JSON."""
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
    """Remove an adapter with all its versions. No request finds it any more; those that run finish first."""
    with _client(url, key) as client:
        deadline_s = time.monotonic() + wait_s
        deletion = client.delete(_route(name), {"wait_s": min(wait_s, 5.0)})
        while deletion["status"] != "deleted" and time.monotonic() < deadline_s:
            time.sleep(POLL_S)
            deletion = client.get(deletion["status_url"])
    if deletion["status"] == "deleted":
        print(f"{name} is removed from everywhere")
    else:
        print(f"{name} is removed; its memory is freed once nothing uses it: {deletion['status_url']} tells when")


@app.command("pin")
def pin(name: Name, url: UrlOption = DEFAULT_URL, key: KeyOption = None) -> None:
    """Keep an adapter in the host memory of every runner."""
    with _client(url, key) as client:
        client.post(_route(name, "pin"))
    print(f"{name} is pinned")


@app.command("unpin")
def unpin(name: Name, url: UrlOption = DEFAULT_URL, key: KeyOption = None) -> None:
    """Let an adapter leave host memory again when others need the room."""
    with _client(url, key) as client:
        client.post(_route(name, "unpin"))
    print(f"{name} is no longer pinned")


@app.command("prefetch")
def prefetch(
    name: Name,
    gpu: Annotated[list[str] | None, typer.Option(help="UUID of a GPU; may be given again. All by default.")] = None,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = None,
) -> None:
    """Bring an adapter to GPUs before anyone asks for it."""
    with _client(url, key) as client:
        client.post(_route(name, "prefetch"), {"gpus": gpu} if gpu else {})
    print(f"{name} is on its way")


def _route(name: str, *action: str) -> str:
    """What is no name is refused by the frontend, and is not read as the name before a question mark."""
    return "/".join(("/v1/adapters", quote(name, safe="/:"), *action))


def _client(url: str, key: str | None) -> "AdapterClient":
    from punica_serve.cli.adapters.client import AdapterClient

    return AdapterClient(url, key)
