"""Whether a config's GPUs can be used, found out before a cluster starts on them.

In a process of its own, `python -m punica_serve.cli.up.devices NAME...`: torch and a CUDA context would stay with `up`.
"""

import subprocess
import sys
from collections.abc import Sequence

from punica_serve.errors import ConfigError
from punica_serve.process import EXIT_USER_MISTAKE, missing_extra

#: A driver that is loaded for the first time takes seconds.
TIMEOUT_S = 120.0


def check_devices(devices: Sequence[str]) -> None:
    """Raises ConfigError that names the first device that can't be used. What is no GPU needs no check."""
    gpus = [device for device in devices if device.startswith("cuda")]
    if not gpus:
        return
    command = [sys.executable, "-P", "-m", __name__, *gpus]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{', '.join(gpus)} did not answer within {TIMEOUT_S:g} s", param="runner.devices") from None
    if found.returncode != 0:
        reason = (found.stdout or found.stderr or "its check died").strip().splitlines()[-1]
        raise ConfigError(f"{reason}; `runner.devices: [cpu]` serves without a GPU", param="runner.devices")


def main() -> None:
    try:
        from punica_serve.engine.device_memory import open_device

        for name in sys.argv[1:]:
            open_device(name)
    except ConfigError as error:
        print(error)
        sys.exit(EXIT_USER_MISTAKE)
    except ModuleNotFoundError as error:
        print(missing_extra(error) or error)
        sys.exit(EXIT_USER_MISTAKE)


if __name__ == "__main__":
    main()
