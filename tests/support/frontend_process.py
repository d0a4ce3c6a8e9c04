"""A frontend as a process of its own, on the demo's model."""

import os
import resource
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from punica_serve.bench.free_ports import free_port
from punica_serve.process.run import TOKEN_ENV


@dataclass(frozen=True)
class FrontendProcess:
    process: subprocess.Popen[bytes]
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def stream_url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/v1/generate/stream"

    @property
    def resident_bytes(self) -> int:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize()


#: Settings of `frontend` are its keywords.
StartFrontend = Callable[..., Awaitable[FrontendProcess]]


def launch(
    folder: Path, scheduler_port: int, settings: dict[str, Any], *, registry_url: str | None = None
) -> FrontendProcess:
    """Starts one that dials this scheduler, with these settings of `frontend` in its config file."""
    port = free_port()
    config = folder / f"{port}.yaml"
    document = {
        "engine": {"model": "demo:model"},
        "frontend": {"port": port, **settings},
        "data_folder": str(folder),
        "registry": {"url": registry_url, "timeout_s": 60.0},
    }
    config.write_text(yaml.safe_dump(document))
    command = [sys.executable, "-P", "-m", "punica_serve.cli", "frontend", "--config", str(config)]
    link = ["--scheduler-url", f"ws://127.0.0.1:{scheduler_port}", "--log-level", "warning"]
    return FrontendProcess(subprocess.Popen([*command, *link], env={**os.environ, TOKEN_ENV: "secret"}), port)
