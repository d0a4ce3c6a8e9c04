"""Commands that work directly on the registry's database: write access to it is enough; no key or cluster is needed."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from punica_serve.registry.registry import Registry

T = TypeVar("T")

#: The author of changes, in the audit log.
BY = "command line"


def on_registry(config_file: Path, work: "Callable[[Registry], Awaitable[T]]") -> T:
    """Runs some work on the registry of a config file. Raises PunicaErrors."""
    from punica_serve.config.cluster import load_config
    from punica_serve.process.logs import LogLevel, configure_logging
    from punica_serve.registry.registry import Registry

    configure_logging("registry", LogLevel.WARNING)
    config = load_config(config_file)

    async def run() -> T:
        registry = await Registry.open(config.registry_url, deadline_s=config.registry.timeout_s)
        try:
            return await work(registry)
        finally:
            await registry.close()

    return asyncio.run(run())


def shown_time(at_s: float | None) -> str:
    return "never" if at_s is None else datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
