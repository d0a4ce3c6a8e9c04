"""Parts of benchmarks that new processes can import, which test modules can't be."""

import os
from typing import NoReturn

from rich.progress import Progress

from punica_serve.errors import ConfigError


def pid_of_part(progress: Progress) -> int:
    return os.getpid()


def refused_part(progress: Progress) -> NoReturn:
    raise ConfigError("no such memory", param="engine.num_lora_pages")


def ended_part(status: int, progress: Progress) -> NoReturn:
    os._exit(status)
