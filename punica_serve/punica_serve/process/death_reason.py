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
