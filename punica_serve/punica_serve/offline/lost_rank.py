"""The end of a script whose group of GPUs has lost a rank."""

import os
import sys
import threading

from punica_serve.errors import PunicaError

#: A script has this long to notice by itself.
_GRACE_S = 10.0


def end_if_hung(loss: PunicaError) -> None:
    """Ends this process after some time, unless it ends by itself.

    An exchange within a CUDA graph can't be given up: a thread that waits for it would wait for ever.
    """
    threading.Timer(_GRACE_S, _end, (loss,)).start()


def _end(loss: PunicaError) -> None:
    print(f"{loss.message}; the GPUs of its group can't go on, so this process ends", file=sys.stderr, flush=True)  # noqa: T201
    os._exit(1)
