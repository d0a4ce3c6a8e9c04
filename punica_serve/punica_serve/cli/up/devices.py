"""Checks that a config's GPUs can be used, before a cluster starts on them.

Runs in a process of its own, `python -m punica_serve.cli.up.devices NAME...`, so that torch and a CUDA context don't
stay in `up`.
"""

import subprocess
import sys
from collections.abc import Sequence

from punica_serve.config.device_groups import ranks_of
from punica_serve.errors import ConfigError
from punica_serve.process.death_reason import failure_reason
from punica_serve.process.module_command import module_command
from punica_serve.process.run import EXIT_USER_MISTAKE, missing_package

#: A driver that is loaded for the first time takes seconds.
TIMEOUT_S = 120.0


def check_devices(devices: Sequence[str]) -> None:
    """Raises ConfigError that names the first unusable GPU. Other devices need no check."""
    gpus = [name for device in devices for name in ranks_of(device) if name.startswith("cuda")]
    if not gpus:
        return
    command = module_command(__name__, *gpus)
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise ConfigError(
            f"{', '.join(gpus)} did not answer within {TIMEOUT_S:g} s; check them with nvidia-smi",
            param="runner.devices",
        ) from None
    if found.returncode != 0:
        reason = failure_reason(found.returncode, found.stdout or found.stderr)
        if found.returncode < 0:
            reason = f"the check of {', '.join(gpus)} was {reason}"
        raise ConfigError(f"{reason}; `runner.devices: [cpu]` serves without a GPU", param="runner.devices")


def main() -> None:
    try:
        from punica_serve.engine.memory.device_memory import open_device

        for name in sys.argv[1:]:
            open_device(name)
    except ConfigError as error:
        print(error)
        sys.exit(EXIT_USER_MISTAKE)
    except ModuleNotFoundError as error:
        print(missing_package(error) or error)
        sys.exit(EXIT_USER_MISTAKE)


if __name__ == "__main__":
    main()
