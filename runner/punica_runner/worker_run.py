"""Runs a worker from its command line on.

The main thread runs steps. A reader thread reads commands from the pipe and answers pings, which distinguishes a long
step from a frozen process. When the pipe ends, the process ends: a worker never outlives its supervisor, not even while
a step hangs.
"""

import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from typing import NoReturn

from punica_runner import engine_steps, simulated_steps
from punica_runner.pipes import WorkerPipe
from punica_runner.supervisor_link import SupervisorLink
from punica_runner.worker_options import WorkerOptions
from punica_serve.engine.ranks.early_ranks import EarlyRanks
from punica_serve.engine.ranks.group_settings import GroupSettings, Rendezvous
from punica_serve.engine.ranks.rank_loss import RankLost
from punica_serve.errors import ConfigError, ModelRejected, PunicaError
from punica_serve.process.logs import configure_logging
from punica_serve.process.parent_death import end_with_parent
from punica_serve.process.run import cluster_token
from punica_serve.protocol import SIMULATED_DEVICE, SupervisorToWorker, WireError, WorkerFailed

#: Time for a worker to finish its step after its supervisor is gone.
ORPHAN_GRACE_S = 1.0
#: Between two signals to its main thread meanwhile.
_SIGNAL_EVERY_S = 0.05


def run(arguments: Sequence[str], others: EarlyRanks | OSError | None) -> NoReturn:
    """``others``: the ranks of its group, which have been started, or why they can't be."""
    options = WorkerOptions.parse(arguments)
    configure_logging(f"worker {options.index}", options.log_level, options.log_format)
    _end_with_supervisor()
    pipe = WorkerPipe(options.read_fd, options.write_fd, SupervisorToWorker)
    link = SupervisorLink(pipe)
    threading.Thread(target=_read, args=(link,), name="pipe-reader", daemon=True).start()
    try:
        if isinstance(others, OSError):
            raise others
        _serve(options, pipe, link, others)
    except BrokenPipeError:
        os._exit(0)  # the supervisor is gone
    except (ModelRejected, ConfigError) as error:
        _fail(pipe, error, permanent=True)
    except Exception as error:
        if not isinstance(error, RankLost):  # which says it all
            traceback.print_exc()
        _fail(pipe, error, permanent=False)


def _end_with_supervisor() -> None:
    signal.signal(signal.SIGTERM, _terminate)
    end_with_parent()  # a second safeguard besides the pipe's end, for a worker that can't run Python any more


def _terminate(*_: object) -> NoReturn:
    """Exits at once: there is nothing to save, and the interpreter's own shutdown can hang in torch."""
    os._exit(0)


def _read(link: SupervisorLink) -> None:
    """The reader thread."""
    try:
        link.read()
    except PunicaError:
        traceback.print_exc()
    except BrokenPipeError:
        pass  # the other pipe has ended
    _end()


def _end() -> NoReturn:
    """Has the main thread end the process, and ends it by itself where that hangs.

    A signal that comes while the main thread waits for the GIL does not interrupt the call that this thread makes next,
    however long that takes. One more does.
    """
    for _ in range(round(ORPHAN_GRACE_S / _SIGNAL_EVERY_S)):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_SIGNAL_EVERY_S)
    os._exit(1)


def _serve(options: WorkerOptions, pipe: WorkerPipe, link: SupervisorLink, others: EarlyRanks | None) -> NoReturn:
    if options.device == SIMULATED_DEVICE:
        simulated_steps.run(options, link)

    def on_loss(loss: PunicaError) -> NoReturn:
        _fail(pipe, loss, permanent=isinstance(loss, ConfigError))

    engine_steps.run(options, _group_settings(options), link, others, on_loss)


def _group_settings(options: WorkerOptions) -> GroupSettings:
    """The deadlines of a group, and where its hosts meet. Raises ConfigError if the cluster's token can't be read."""
    runner = options.runner
    rendezvous = Rendezvous.of(runner.rendezvous, cluster_token()) if runner.rendezvous is not None else None
    name = f"worker {options.index} rank"
    return GroupSettings.of_runner(runner, name, options.log_level, options.log_format, rendezvous)


def _fail(pipe: WorkerPipe, error: Exception, *, permanent: bool) -> NoReturn:
    """Sends the reason to the supervisor, and exits: with code 2 after an operator's mistake, with 1 after a bug.

    It exits at once: the interpreter's own shutdown waits for threads, and a read of an adapter may never return.
    """
    if isinstance(error, PunicaError):
        reason = WireError.of(error)
    else:
        reason = WireError(PunicaError.code, f"{type(error).__name__}: {error}")
    with contextlib.suppress(BrokenPipeError):
        pipe.send(WorkerFailed(reason, permanent))
    sys.stderr.flush()
    os._exit(2 if permanent else 1)
