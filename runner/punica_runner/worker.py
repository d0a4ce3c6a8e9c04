"""The worker process: one real or simulated device, or a group of devices, which its supervisor commands over pipes.

    python -m punica_runner.worker, started by the supervisor and not by hand

The other ranks of a group are processes of their own, which import torch as long as this one does. So it starts them
before it reads its settings: ``worker_run`` has all that follows.
"""

import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from punica_serve.engine.ranks.early_ranks import EarlyRanks

_DEVICE = "--device"


def main() -> None:
    # Ctrl-C reaches the whole terminal, but only the supervisor acts on it, by SIGTERM. All imports come after this.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    arguments = sys.argv[1:]
    others = _start_others(arguments)
    from punica_runner.worker_run import run

    run(arguments, others)


def _start_others(arguments: Sequence[str]) -> "EarlyRanks | OSError | None":
    """Until they are told what they serve, they end with this process. ``run`` tells the supervisor of an error."""
    from punica_serve.engine.ranks.early_ranks import start_early

    if _DEVICE not in arguments[:-1]:
        return None  # the arguments are refused
    try:
        return start_early(arguments[arguments.index(_DEVICE) + 1])
    except OSError as error:
        return error


if __name__ == "__main__":
    main()
