"""Why a child process has ended."""

import signal


def death_reason(returncode: int) -> str:
    """Why a child process with this ``returncode`` ended, in words for a log line."""
    if returncode >= 0:
        return f"exit code {returncode}"
    try:
        return f"killed by {signal.Signals(-returncode).name}"
    except ValueError:  # most real-time signals have no name
        return f"killed by signal {-returncode}"


def failure_reason(returncode: int, output: str) -> str:
    """Why a child process has failed: the last line that it said, or how it ended.

    The last line of one that a fault killed is of Python's dump of its stacks, and says nothing.
    """
    lines = output.strip().splitlines() if returncode >= 0 else []
    return lines[-1] if lines else death_reason(returncode)
