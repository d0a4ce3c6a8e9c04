"""`python -m punica_serve.cli` is `punica-serve`. `up` starts its processes so, without looking for a script."""

import signal

signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback for Ctrl-C during the imports
from punica_serve.cli import main  # noqa: E402

signal.signal(signal.SIGINT, signal.default_int_handler)
main()
