"""`punica-serve bench ...`: the benchmarks, one module per command."""

import typer

from punica_serve.cli.bench import (
    batching,
    coldstart,
    coldstart_idle,
    coldstart_loads,
    coldstart_series,
    collectives,
    control_plane,
    cpu_assist,
    decode_ranks,
    frontend,
    hops,
    hot_reload,
    just_in_time,
    kernels,
    layer,
    moves,
    overhead,
    prefix_caching,
    prompts,
    serving,
    start,
    textgen,
)

app = typer.Typer(
    name="bench",
    help=(
        "Measure this machine. kernels and layer run on cuda:0 and collectives on all GPUs, unless `--device` is cpu;"
        " the others need no GPU."
    ),
    no_args_is_help=True,
)
app.command("batching")(batching.command)
app.command("coldstart")(coldstart.command)
app.command("coldstart-idle")(coldstart_idle.command)
app.command("coldstart-loads")(coldstart_loads.command)
app.command("coldstart-series")(coldstart_series.command)
app.command("collectives")(collectives.command)
app.command("control-plane")(control_plane.command)
app.command("cpu-assist")(cpu_assist.command)
app.command("decode-ranks")(decode_ranks.command)
app.command("frontend")(frontend.command)
app.command("hops")(hops.command)
app.command("hot-reload")(hot_reload.command)
app.command("just-in-time")(just_in_time.command)
app.command("kernels")(kernels.command)
app.command("layer")(layer.command)
app.command("moves")(moves.command)
app.command("overhead")(overhead.command)
app.command("prefix-caching")(prefix_caching.command)
app.command("prompts")(prompts.command)
app.command("serving")(serving.command)
app.command("start")(start.command)
app.command("textgen")(textgen.command)


@app.callback()
def _group() -> None:
    """Makes typer keep subcommands even if there is only one."""
