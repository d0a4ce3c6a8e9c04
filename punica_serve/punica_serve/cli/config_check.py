"""`punica-serve config check FILE`: finds what `up` would refuse, without starting anything."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from punica_serve.cli.shipped_configs import find_config
from punica_serve.errors import ConfigError
from punica_serve.process.logs import LogLevel, configure_logging
from punica_serve.process.outputs import check_folder

if TYPE_CHECKING:
    from rich.table import Table

    from punica_serve.base_model.model_config import ModelConfig
    from punica_serve.config.cluster import ClusterConfig
    from punica_serve.registry.snapshot import SharedAdapters

EXIT_ADAPTER_REFUSED = 1
#: Enough of a digest to tell adapters apart by eye.
SHOWN_DIGEST_LENGTH = 12


def command(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", callback=find_config, help="A cluster's config file, or a shipped one's name."),
    ],
) -> None:
    """Check a config file, its model folder and its adapters.

    Exit code 2: the config or the model is wrong. 1: an adapter is refused; stderr says why.
    """
    from rich.console import Console

    from punica_serve.config.cluster import load_config
    from punica_serve.registry.shared import shared_adapters

    configure_logging("config check", LogLevel.WARNING)
    config = load_config(file)
    model = check_config(config)
    check_host(config)
    shared = shared_adapters(config, model)
    console = Console(highlight=False)
    console.print(f"model {config.engine.served_name}: {config.engine.model}", soft_wrap=True, markup=False)
    for told in model.generation.not_applied:
        console.print(f"not implemented: {told}", soft_wrap=True, markup=False)
    if gpus := [device for device in config.runner.workers if device.startswith("cuda")]:
        console.print(f"devices {', '.join(gpus)}: checked at the start, on the hosts that run workers")
    if config.adapters:
        console.print(_table(shared))
    if shared.rejected:
        raise typer.Exit(EXIT_ADAPTER_REFUSED)


def check_config(config: "ClusterConfig") -> "ModelConfig":
    """The base model's shape, after checking that its folder is valid and that the config fits it.

    Raises ModelRejected and ConfigError.
    """
    from punica_serve.adapters.pool_fit import check_dummies_fit_pool
    from punica_serve.base_model.group_sizes import check_group_size
    from punica_serve.base_model.model_config import read_model_config
    from punica_serve.base_model.weight_files import weight_files
    from punica_serve.config.device_groups import ranks_of
    from punica_serve.links.https_context import server_context
    from punica_serve.links.ssl_context import check_files
    from punica_serve.performance.cluster_model import cluster_model
    from punica_serve.performance.profile import load_profile
    from punica_serve.text.tokenizer import Tokenizer

    load_profile(config.simulation.profile)
    cluster_model(config)
    if config.scheduler.port == config.frontend.port != 0 and config.scheduler.host == config.frontend.host:
        raise ConfigError(f"`scheduler.port` and `frontend.port` are both {config.frontend.port}; they must differ")
    check_dummies_fit_pool(config.dummy_adapters, config.engine.num_lora_pages)
    if config.tls:
        check_files(config.tls)
    if config.frontend.tls:
        server_context(config.frontend.tls)
    model = read_model_config(config.engine.model)
    config.engine.context_of(model)
    for worker in config.runner.workers:
        check_group_size(model, len(ranks_of(worker)))
    Tokenizer.from_folder(config.engine.tokenizer_folder)
    if config.engine.load_format == "safetensors":
        weight_files(config.engine.model)
    return model


def check_host(config: "ClusterConfig") -> None:
    """Checks what the cluster's processes need on this machine, run as this user. Raises ConfigError."""
    check_folder(config.data_folder, "data_folder")
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
