"""`punica-serve adapters verify`: what registering a folder would say, on this machine, and what PEFT says of it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from punica_serve.cli.options import DEFAULT_CONFIG, ConfigOption
from punica_serve.errors import AdapterRejected

if TYPE_CHECKING:
    from punica_serve.config import EngineConfig
    from punica_serve.protocol import AdapterRef


def verify(
    folder: Annotated[Path, typer.Argument(help="A PEFT folder.")],
    parity: Annotated[
        bool, typer.Option("--parity", help="Also load the base model, and compare what the engine and PEFT compute.")
    ] = False,
    config: ConfigOption = DEFAULT_CONFIG,
) -> None:
    """Check a PEFT folder against the base model of a config file, without any cluster.

    Exit code 1: it would be refused, or not be applied as PEFT applies it; stderr says why.
    """
    from punica_serve.adapters.folder import read_adapter
    from punica_serve.adapters.pool_fit import check_fits_pool
    from punica_serve.config import load_config
    from punica_serve.logs import LogLevel, configure_logging
    from punica_serve.model_config import read_model_config

    configure_logging("adapters verify", LogLevel.WARNING)
    cluster = load_config(config)
    model = read_model_config(cluster.engine.model)
    ref = read_adapter(folder, model, strict_base=cluster.strict_base).ref
    check_fits_pool(ref, cluster.engine.num_lora_pages)
    ranks = ", ".join(f"{module} {rank}" for module, rank in ref.ranks.items())
    print(f"{folder} can be served on {cluster.engine.served_name}\nranks: {ranks}\ndigest: {ref.digest}")
    if parity:
        _check_parity(cluster.engine, ref)


def _check_parity(engine: "EngineConfig", ref: "AdapterRef") -> None:
    from rich.console import Console

    from punica_serve.cli.adapters.parity import TOLERANCE, parity_table, probe

    rows = probe(engine, ref)
    Console(highlight=False).print(parity_table(rows))
    if beyond := [row.difference for row in rows if not row.difference <= TOLERANCE]:  # as NaN is
        message = f"the engine and PEFT differ by {max(beyond):.1e}, and {TOLERANCE:.0e} is allowed: do not serve it"
        raise AdapterRejected(f"{message}, and report it with its adapter_config.json")
    print(f"the engine and PEFT agree within {TOLERANCE:.0e}")
