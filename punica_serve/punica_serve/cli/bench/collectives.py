"""`punica-serve bench collectives`."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from punica_serve.cli.bench.common import DEFAULT_OUT, OutOption, measure
from punica_serve.errors import ConfigError

_SMALLEST_BYTES, _LARGEST_BYTES = 1 << 13, 1 << 24


def command(
    ranks: Annotated[int, typer.Option(min=2, max=64, help="Processes, one GPU each.")] = 2,
    device: Annotated[str, typer.Option(help="cuda or cpu.")] = "cuda",
    ways: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,...",
            help="nccl, one_shot, two_shot; nccl_norm, one_shot_norm, two_shot_norm, with what a layer does around it;"
            " fused, one kernel for all of that; flashinfer, FlashInfer's behind one that sums the parts, if it is"
            " installed. multimem only if asked for: it adds in no fixed order. gloo on CPUs.",
        ),
    ] = None,
    size: Annotated[
        list[int] | None,
        typer.Option(min=64, max=1 << 30, help="Bytes of a rank's tensor; default 8 KiB to 16 MiB by twos."),
    ] = None,
    table: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the GPUs' times here, for `engine.exchange_times`.")
    ] = None,
    replays: Annotated[int, typer.Option(min=1, max=10_000, help="Replays; results are medians.")] = 7,
    out: OutOption = DEFAULT_OUT,
) -> None:
    """Measure how long ranks take to add up a tensor, and to norm the sum, in processes that this command starts."""
    from punica_serve.bench.collectives.exchange_rank import ExchangeSettings
    from punica_serve.bench.collectives.exchange_run import run_exchanges
    from punica_serve.bench.collectives.exchange_ways import parse_ways

    _check_device(device, ranks)
    chosen = parse_ways(ways, on_gpu=device == "cuda")
    _check_table(table, chosen)
    settings = ExchangeSettings(
        device=device,
        num_ranks=ranks,
        ways=chosen,
        sizes=tuple(sorted(size or _sizes())),
        num_replays=replays,
    )
    measure(partial(run_exchanges, settings, times_file=table), out)


def _sizes() -> list[int]:
    sizes = [_SMALLEST_BYTES]
    while sizes[-1] < _LARGEST_BYTES:
        sizes.append(2 * sizes[-1])
    return sizes


def _check_table(table: Path | None, ways: tuple[str, ...]) -> None:
    if table is None:
        return
    if "nccl" not in ways:
        raise ConfigError("`--table` takes GPUs' times, NCCL's among them; drop it, or measure these", param="table")
    if not table.absolute().parent.is_dir():
        raise ConfigError(f"`--table`: there is no folder {table.absolute().parent}", param="table")


def _check_device(device: str, ranks: int) -> None:
    import torch

    if device not in ("cuda", "cpu"):
        raise ConfigError(f"`--device` is {device!r}; the ranks are on cuda, a GPU each, or on cpu", param="device")
    if device == "cuda" and (count := torch.cuda.device_count()) < ranks:
        raise ConfigError(
            f"`--ranks` is {ranks}, and there are {count} GPUs here; lower it, or measure with `--device cpu`",
            param="ranks",
        )
