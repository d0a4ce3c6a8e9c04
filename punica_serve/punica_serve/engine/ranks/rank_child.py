"""The process of a rank on this host, as its parent sees it."""

import contextlib
import os
import subprocess
from collections.abc import Sequence

from punica_serve.engine.ranks.rank_ring import ReaderPlace
from punica_serve.process.run import death_reason

#: From the end of a process's link to the end of the process.
_EXIT_GRACE_S = 1.0
#: From a kill to the end of the process, which a driver may delay.
_KILL_TIMEOUT_S = 5.0


class RankChild:
    """A started process. On Linux the kernel ends it with its parent."""

    def __init__(self, command: Sequence[str], place: ReaderPlace, link_fd: int) -> None:
        """``command``: the command line, to which its place and its end of the leader's link are appended."""
        options = {
            "--ring-fd": place.ring_fd,
            "--bell-fd": place.bell_fd,
            "--reader": place.index,
            "--num-readers": place.num_readers,
            "--link-fd": link_fd,
        }
        self._process = subprocess.Popen(
            [*command, *(word for name, value in options.items() for word in (name, f"{value}"))],
            pass_fds=(place.ring_fd, place.bell_fd, link_fd),
            env={**os.environ, "PYTHONSAFEPATH": "1"},
            stdin=subprocess.DEVNULL,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def end_reason(self, grace_s: float = _EXIT_GRACE_S) -> str | None:
        """Why it has ended, in words; None if it has not within this grace."""
        try:
            return death_reason(self._process.wait(grace_s))
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """Does nothing if it has ended. On any thread."""
        self._process.kill()

    def stop(self, timeout_s: float) -> bool:
        """Waits until the process has ended by itself, and kills it after the timeout: whether it needed no kill."""
        try:
            self._process.wait(max(timeout_s, 0.0))
        except subprocess.TimeoutExpired:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_KILL_TIMEOUT_S)
            return False
        return True
