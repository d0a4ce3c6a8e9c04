"""`punica-serve config check FILE`: what `up` would refuse, without starting anything."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from punica_serve.errors import ConfigError
from punica_serve.process import LogLevel, configure_logging

if TYPE_CHECKING:
    from rich.table import Table

    from punica_serve.adapters.catalog import AdapterCatalog
    from punica_serve.config import ClusterConfig
    from punica_serve.model_config import ModelConfig

EXIT_ADAPTER_REFUSED = 1
#: Enough of a digest to tell adapters apart by eye.
SHOWN_DIGEST_LENGTH = 12


def command(file: Annotated[Path, typer.Argument(metavar="FILE", help="A cluster's config file.")]) -> None:
    """Check a config file, its model folder and its adapters.

    Exit code 2: the config or the model is wrong; 1: an adapter is refused, and stderr says why.
    """
    from rich.console import Console

    from punica_serve.adapters.catalog import AdapterCatalog
    from punica_serve.config import load_config

    configure_logging("config check", LogLevel.WARNING)
    config = load_config(file)
    base_name = config.engine.served_name
    model = check_config(config)
    catalog = AdapterCatalog.load(config.adapters, model, base_name=base_name, strict_base=config.strict_base)
    console = Console(highlight=False)
    console.print(f"model {base_name}: {config.engine.model}", soft_wrap=True, markup=False)
    if config.adapters:
        console.print(_table(catalog))
    if catalog.rejected:
        raise typer.Exit(EXIT_ADAPTER_REFUSED)


def check_config(config: "ClusterConfig") -> "ModelConfig":
    """The base model's shape, once its folder is found to be one and the config fits it.

    Raises ModelRejected and ConfigError.
    """
    from punica_serve.model_config import read_model_config
    from punica_serve.text.tokenizer import Tokenizer
    from punica_serve.weight_files import weight_files

    if config.scheduler.port == config.frontend.port != 0 and config.scheduler.host == config.frontend.host:
        raise ConfigError(f"`scheduler.port` and `frontend.port` are both {config.frontend.port}; they must differ")
    model = read_model_config(config.engine.model)
    config.engine.context_of(model)
    Tokenizer.from_folder(config.engine.tokenizer_folder)
    if config.engine.load_format == "safetensors":
        weight_files(config.engine.model)
    return model


def _table(catalog: "AdapterCatalog") -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table("adapter", "rank", "digest", "result")
    for entry in catalog.entries:
        rank = max(entry.ref.ranks.values())
        table.add_row(Text(entry.name), str(rank), entry.ref.digest[:SHOWN_DIGEST_LENGTH], "[green]ok[/]")
    for name, refusal in catalog.rejected.items():
        table.add_row(Text(name), "", "", Text.assemble(("refused", "red"), f": {refusal.message}"))
    return table
