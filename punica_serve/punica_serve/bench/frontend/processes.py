"""The frontend under test, an unmodified `punica-serve frontend`, and its clients."""

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import yaml

from punica_serve.bench.process_figures import ProcessFigures
from punica_serve.errors import ConfigError
from punica_serve.process.ctrl_c import ctrl_c_blocked
from punica_serve.process.ending import end_program
from punica_serve.process.module_command import module_command
from punica_serve.process.run import TOKEN_ENV

_PROC = Path("/proc")


@contextmanager
def frontend_process(
    folder: Path, port: int, scheduler_url: str, token: str, num_adapters: int
) -> Iterator[ProcessFigures]:
    """Runs a frontend with the demo's model; ``folder`` gets its config. Raises ConfigError if it can't be measured
    here.
    """
    if not (_PROC / "self/stat").exists():
        raise ConfigError("bench frontend reads processes' times from /proc, so it needs Linux")
    config = folder / "frontend.yaml"
    # A registry of its own: other frontends of this user share the default one, and would wait for each other.
    settings = {
        "engine": {"model": "demo:model"},
        "dummy_adapters": {"count": num_adapters},
        "frontend": {"port": port},
        "data_folder": str(folder),
    }
    config.write_text(yaml.safe_dump(settings))
    link = ("--config", str(config), "--scheduler-url", scheduler_url, "--log-level", "warning")
    with _running("punica_serve.cli", ["frontend", *link], {TOKEN_ENV: token}) as pid:
        yield ProcessFigures(pid)


@contextmanager
def clients_process(*load: str | int) -> Iterator[None]:
    """Runs a process of clients; ``load`` is as in clients.py."""
    with _running("punica_serve.bench.frontend.clients", list(map(str, load)), {}):
        yield


@contextmanager
def _running(module: str, arguments: Sequence[str], environment: dict[str, str]) -> Iterator[int]:
    """Runs a Python process and yields its id; kills it at the end."""
    command = module_command(module, *arguments)
    with ctrl_c_blocked():
        process = subprocess.Popen(command, env={**os.environ, **environment})
    try:
        yield process.pid
    finally:
        end_program(process)
