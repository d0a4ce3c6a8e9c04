"""`punica-serve adapters verify`: checks a folder on this machine as registration would, and compares it with PEFT."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from punica_serve.cli.options import DEFAULT_CONFIG, ConfigOption
from punica_serve.errors import AdapterRejected

if TYPE_CHECKING:
    from punica_serve.config.engine_section import EngineConfig
    from punica_serve.protocol import AdapterRef


def verify(
    folder: Annotated[Path, typer.Argument(help="A PEFT folder.")],
    parity: Annotated[
        bool, typer.Option("--parity", help="Also load the base model, and compare what the engine and PEFT compute.")
    ] = False,
    config: ConfigOption = DEFAULT_CONFIG,
) -> None:
    """Check a PEFT folder against the base model of a config file, without a cluster.

    Exit code 1: it would be refused, or not be applied as PEFT applies it; stderr says why.
    """
    from punica_serve.adapters.folder import read_adapter
    from punica_serve.adapters.pool_fit import check_fits_pool
    from punica_serve.base_model.config_json import read_model_config
    from punica_serve.config.cluster import load_config
    from punica_serve.process.logs import LogLevel, configure_logging

    configure_logging("adapters verify", LogLevel.WARNING)
    cluster = load_config(config)
    model = read_model_config(cluster.engine.model)
    ref = read_adapter(folder, model, strict_base=cluster.strict_base)
    check_fits_pool(ref, cluster.engine.lora_pages, cluster.engine.lora_limits)
    ranks = ", ".join(f"{module} {rank}" for module, rank in ref.ranks.items())
    print(f"{folder} can be served on {cluster.engine.served_name}\nranks: {ranks}\ndigest: {ref.digest}")
    if parity:
        _check_parity(cluster.engine, ref)


def _check_parity(engine: "EngineConfig", ref: "AdapterRef") -> None:
    from rich.console import Console

    from punica_serve.cli.adapters.parity import TOLERANCE, parity_table, probe

    rows = probe(engine, ref)
    Console(highlight=False).print(parity_table(rows))
    if beyond := [row.difference for row in rows if not row.difference <= TOLERANCE]:  # NaN counts as beyond
        message = (
            f"the engine and PEFT differ by {max(beyond):.1e}, more than {TOLERANCE:.0e}: do not serve this adapter"
        )
        raise AdapterRejected(f"{message}, and report a bug with its adapter_config.json")
    print(f"the engine and PEFT agree within {TOLERANCE:.0e}")
