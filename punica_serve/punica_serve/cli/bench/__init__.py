"""`punica-serve bench ...`: benchmarks of one device, one file for each command."""

import typer

from punica_serve.cli.bench import kernels, textgen

app = typer.Typer(name="bench", help="Measure this machine.", no_args_is_help=True)
app.command("kernels")(kernels.command)
app.command("textgen")(textgen.command)


@app.callback()
def _group() -> None:
    """Keeps commands subcommands, however few they are."""
