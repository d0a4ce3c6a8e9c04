"""The command that runs one of our modules in a process of its own."""

import sys


def module_command(module: str, *arguments: str) -> list[str]:
    """``python -m module``, which imports nothing from the working directory.

    If it dies of a fault in native code, the stacks of all its threads are in its log.
    """
    return [sys.executable, "-P", "-X", "faulthandler", "-m", module, *arguments]
