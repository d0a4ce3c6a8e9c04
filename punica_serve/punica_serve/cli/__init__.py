"""The command line, `punica-serve`: one module per command.

Only ``commands`` knows all the others. This package itself imports none of them: its ``main`` decides first how Ctrl-C
ends their imports.
"""

import faulthandler
import signal
import sys

#: Ctrl-C ended the command, as shells have it.
EXIT_INTERRUPTED = 128 + signal.SIGINT


def main() -> None:
    """Runs the command that ``sys.argv`` names. Ctrl-C ends it without a traceback, also while it is imported.

    A fault in native code leaves the stacks of its threads on stderr.
    """
    if sys.stderr is not None and not faulthandler.is_enabled():
        faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from punica_serve.cli.commands import run

    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        run()
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
