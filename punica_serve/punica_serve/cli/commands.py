"""All commands of `punica-serve`, and how their errors are told.

Commands import their dependencies when they run, so `--help` is fast, and `generate` needs neither torch nor the
servers.
"""

import sys
from typing import Annotated

import typer

from punica_serve.cli import (
    adapters,
    bench,
    config_check,
    generate,
    keys,
    processes,
    profile,
    simulate,
    tenants,
    top,
    up,
)
from punica_serve.errors import (
    AdapterNotFound,
    AdapterRejected,
    Conflict,
    Forbidden,
    InvalidRequest,
    OutOfCapacity,
    PunicaError,
    RequestFailed,
)
from punica_serve.process.run import EXIT_USER_MISTAKE, missing_package
from punica_serve.version import __version__

#: A request reached the component that decides, and was refused or failed.
EXIT_REFUSED = 1
_REFUSALS = (
    AdapterNotFound,
    AdapterRejected,
    Conflict,
    Forbidden,
    InvalidRequest,
    OutOfCapacity,
    RequestFailed,
)

app = typer.Typer(
    name="punica-serve",
    help="Serve thousands of LoRA models over one shared base model.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("up")(up.command)
app.command("generate")(generate.command)
app.command("top")(top.command)
app.command("scheduler")(processes.scheduler)
app.command("runner")(processes.runner)
app.command("frontend")(processes.frontend)
app.command("profile")(profile.command)
app.command("simulate")(simulate.command)

config_app = typer.Typer(name="config", help="Work with config files.", no_args_is_help=True)
config_app.command("check")(config_check.command)
app.add_typer(config_app)
app.add_typer(adapters.app)
app.add_typer(keys.app)
app.add_typer(tenants.app)
app.add_typer(bench.app)


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Global options."""


def run() -> None:
    """Runs a command. Errors are printed to stderr, one line each; a config file may have several.

    Exit code 1: the request was refused or failed. 2: it was not made, because the command, the config or the key is
    wrong, or nothing answers.
    """
    try:
        app()
    except PunicaError as error:
        print(f"punica-serve: {error}", file=sys.stderr)
        sys.exit(EXIT_REFUSED if isinstance(error, _REFUSALS) else EXIT_USER_MISTAKE)
    except ModuleNotFoundError as error:
        message = missing_package(error)
        if message is None:
            raise
        print(f"punica-serve: {message}", file=sys.stderr)
        sys.exit(EXIT_USER_MISTAKE)
