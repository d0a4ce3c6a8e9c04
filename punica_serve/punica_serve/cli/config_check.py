"""`punica-serve config check`: finds what `up` would refuse in a config or a model, without starting anything."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from punica_serve.cli.group_bytes import group_lines, rank_lines
from punica_serve.cli.model_check import GPUS, check_files, check_model, engine_for, gpu_bytes, limit_lines
from punica_serve.cli.room_lines import adapter_lines, auto_lines, batch_line, batch_on, prefill_line
from punica_serve.cli.shipped_configs import find_config
from punica_serve.errors import ConfigError, ModelFileMissing
from punica_serve.process.logs import LogLevel, configure_logging
from punica_serve.process.outputs import check_folder

if TYPE_CHECKING:
    from rich.table import Table

    from punica_serve.base_model.model_config import ModelConfig
    from punica_serve.config.cluster import ClusterConfig
    from punica_serve.config.engine_section import EngineConfig
    from punica_serve.registry.shared_adapters import SharedAdapters

EXIT_ADAPTER_REFUSED = 1
#: Enough of a digest to tell adapters apart by eye.
SHOWN_DIGEST_LENGTH = 12


def command(
    given: Annotated[
        Path | None,
        typer.Argument(
            metavar="[CONFIG|FOLDER]",
            help="A cluster's config file, a shipped one's name, or a model folder as for --model.",
        ),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option("--model", metavar="FOLDER", help="A model folder in Hugging Face's format, or demo:model."),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option("--gpu", metavar="NAME|BYTES", help=f"Say what fits a GPU: {', '.join(GPUS)}, or its bytes."),
    ] = None,
    tensor_parallel: Annotated[
        int | None,
        typer.Option(metavar="SIZE", min=1, max=64, help="With a folder: a group of so many devices serves the model."),
    ] = None,
) -> None:
    """Check a config file, its model folder and its adapters; or a model folder alone.

    Exit code 2: the config or the model is wrong, lacks files, or does not fit. 1: an adapter is refused; stderr says
    why. A folder that holds config.json alone, to plan with, passes with a line that no weights are there.
    """
    from punica_serve.config.fields import is_packaged

    configure_logging("config check", LogLevel.WARNING)
    if (given is None) == (model is None):
        raise ConfigError("give a config or a model folder: `config check CONFIG` or `config check --model FOLDER`")
    if gpu is not None:
        gpu_bytes(gpu)  # a wrong name is told even if there is no model to fit
    if model is None and given is not None and (os.path.isdir(given) or is_packaged(str(given))):
        model = given
    if model is not None:
        _check_folder(engine_for(model), gpu, tensor_parallel or 1)
    elif tensor_parallel is not None:
        message = "`--tensor-parallel` goes with a model folder; a config file has `runner.tensor_parallel`"
        raise ConfigError(message, param="tensor_parallel")
    elif given is not None:
        _check_file(find_config(given), gpu)


def _check_folder(engine: "EngineConfig", gpu: str | None, num_ranks: int) -> None:
    """Prints what the configuration says, also if the error is that other files are missing."""
    from punica_serve.base_model.config_json import read_model_config

    lines = check_model(engine, gpu, num_ranks)
    if num_ranks > 1:
        lines.extend(rank_lines(engine, read_model_config(engine.model), num_ranks))
    try:
        told = check_files(engine)
    except ModelFileMissing:
        _print(lines)
        raise
    _print(lines if told is None else [*lines, told])


def _print(lines: list[str]) -> None:
    for line in lines:
        print(line)


def _check_file(file: Path, gpu: str | None) -> None:
    from rich.console import Console

    from punica_serve.config.cluster import load_config
    from punica_serve.registry.config_adapters import shared_adapters

    config = load_config(file)
    model = check_config(config)
    check_host(config)
    shared = shared_adapters(config, model)
    if gpu is not None:
        _print(_lines_about_gpu(config, gpu))
    console = Console(highlight=False)
    console.print(f"model {config.engine.served_name}: {config.engine.model}", soft_wrap=True, markup=False)
    for told in model.generation.not_applied:
        console.print(f"not implemented: {told}", soft_wrap=True, markup=False)
    for line in _lines_without_gpu(config, model) if gpu is None else ():  # else the lines about the GPU have them
        console.print(line, soft_wrap=True, markup=False)
    for line in auto_lines(config):
        console.print(line, soft_wrap=True, markup=False)
    if gpus := [device for device in config.runner.workers if device.startswith("cuda")]:
        console.print(f"devices {', '.join(gpus)}: checked at the start, on the hosts that run workers", soft_wrap=True)
    for line in group_lines(config, model) if config.runner.group_size > 1 else ():
        console.print(line, soft_wrap=True, markup=False)
    if config.adapters:
        console.print(_table(shared))
    if shared.rejected:
        raise typer.Exit(EXIT_ADAPTER_REFUSED)


def _lines_about_gpu(config: "ClusterConfig", gpu: str) -> list[str]:
    """The model on a GPU, with the batch that fits it. Raises ConfigError if `auto` has no profile, or nothing fits."""
    from punica_serve.adapters.expected_rank import batch_of, engine_of

    engine, num_ranks = engine_of(config), config.runner.group_size
    batch = batch_on(batch_of(config), engine, num_ranks, gpu_bytes(gpu))
    return check_model(engine.model_copy(update={"max_batch_size": batch.size}), gpu, num_ranks, batch)


def _lines_without_gpu(config: "ClusterConfig", model: "ModelConfig") -> Iterator[str]:
    """Says what the settings aim at, where no GPU is known. Raises ConfigError if `auto` has no profile."""
    from punica_serve.adapters.expected_rank import batch_of, engine_of
    from punica_serve.base_model.rank import Rank

    engine = engine_of(config)
    yield from limit_lines(engine, model)
    yield batch_line(batch_of(config), is_gpu_known=False)
    yield prefill_line(engine)
    yield from adapter_lines(engine, engine.share_of(model, Rank(0, config.runner.group_size)))


def check_config(config: "ClusterConfig") -> "ModelConfig":
    """The base model's shape, after checking that its folder is valid and that the config fits it.

    Raises ModelRejected and ConfigError.
    """
    from punica_serve.adapters.pool_fit import check_dummies_fit_pool
    from punica_serve.base_model.checkpoint import checked_weights
    from punica_serve.base_model.config_json import read_model_config
    from punica_serve.base_model.group_sizes import check_group_size
    from punica_serve.engine.ranks.exchange_choice import read_times
    from punica_serve.links.https_context import server_context
    from punica_serve.links.ssl_context import check_files
    from punica_serve.performance.attention_table import load_table
    from punica_serve.performance.cluster_model import cluster_model
    from punica_serve.performance.profile import load_profile
    from punica_serve.text.tokenizer import Tokenizer

    load_profile(config.simulation.profile)
    if config.engine.attention_times is not None:
        load_table(config.engine.attention_times)
    if config.engine.exchange_times is not None:
        read_times(config.engine.exchange_times)
    cluster_model(config)
    if config.scheduler.port == config.frontend.port != 0 and config.scheduler.host == config.frontend.host:
        raise ConfigError(f"`scheduler.port` and `frontend.port` are both {config.frontend.port}; they must differ")
    check_dummies_fit_pool(config.dummy_adapters, config.engine.lora_pages, config.engine.lora_limits)
    if config.tls:
        check_files(config.tls)
    if config.frontend.tls:
        server_context(config.frontend.tls)
    model = read_model_config(config.engine.model)
    config.engine.context_of(model)
    for worker in config.runner.workers:
        config.engine.check_device(worker)
    check_group_size(model, config.runner.group_size)
    Tokenizer.from_folder(config.engine.tokenizer_folder)
    if config.engine.load_format == "safetensors":
        checked_weights(config.engine.model, model)
    return model


def check_host(config: "ClusterConfig") -> None:
    """Checks what the cluster's processes need on this machine, run as this user. Raises ConfigError."""
    from punica_serve.store.filesystems import check_package
    from punica_serve.store.secrets import check_secrets

    check_secrets(config.store)
    check_folder(config.data_folder, "data_folder")
    if config.store_folder:
        check_folder(config.store_folder, "store.url")
    else:
        check_package(config.store_url)
    hook = config.scheduler.scale.hook
    if hook and shutil.which(hook[0]) is None:
        message = f"`scheduler.scale.hook`: {hook[0]} is not a command that can be run here"
        raise ConfigError(message, param="scheduler.scale.hook")


def _table(shared: "SharedAdapters") -> "Table":
    """The adapters' table, without dummies: there may be thousands, and they can't be wrong."""
    from rich.table import Table
    from rich.text import Text

    from punica_serve.adapters.dummy import dummy_number

    table = Table("adapter", "rank", "digest", "result")
    for adapter in shared.versions.values():
        if dummy_number(adapter.ref) is None:
            rank = max(adapter.ref.ranks.values())
            table.add_row(Text(adapter.name), str(rank), adapter.ref.digest[:SHOWN_DIGEST_LENGTH], "[green]ok[/]")
    for name, refusal in shared.rejected.items():
        table.add_row(Text(name), "", "", Text.assemble(("refused", "red"), f": {refusal}"))
    return table
