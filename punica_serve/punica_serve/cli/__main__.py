"""`python -m punica_serve.cli` is `punica-serve`: how `up` starts its processes without searching for a script."""

import signal

signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C in the middle of the imports is no reason for a traceback
from punica_serve.cli import main  # noqa: E402

signal.signal(signal.SIGINT, signal.default_int_handler)
main()
