"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

from punica_serve.process import LogLevel

DEFAULT_CONFIG = Path("configs/demo.yaml")

ConfigOption = Annotated[Path, typer.Option("--config", metavar="FILE", help="The cluster's config file.")]
HostOption = Annotated[str | None, typer.Option(help="Address to listen on, instead of the config's.")]
PortOption = Annotated[int | None, typer.Option(min=0, max=65535, help="Port, instead of the config's; 0: a free one.")]
LogLevelOption = Annotated[LogLevel, typer.Option(help="The least level that is logged.")]
SchedulerUrlOption = Annotated[
    str | None, typer.Option(metavar="URL", help="The scheduler's, if not the config's; @FILE: what the file says.")
]
