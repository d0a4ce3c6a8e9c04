"""The process of a rank on this host, as its parent sees it."""

import contextlib
import os
import subprocess
import threading

from punica_serve.engine.ranks.rank_ring import ReaderPlace
from punica_serve.process.ctrl_c import ctrl_c_blocked
from punica_serve.process.death_reason import death_reason
from punica_serve.process.module_command import module_command
from punica_serve.protocol import Message, encode

#: The module that it runs.
_MODULE = "punica_serve.engine.rank_main"

#: From the end of a process's link to the end of the process.
_EXIT_GRACE_S = 1.0
#: From a kill to the end of the process, which a driver may delay.
_KILL_TIMEOUT_S = 5.0


class RankChild:
    """A started process, which imports what every rank needs, and waits for ``begin``. It ends with its parent."""

    def __init__(self, place: ReaderPlace, link_fd: int) -> None:
        """``link_fd``: its end of the leader's link."""
        options = {
            "--ring-fd": place.ring_fd,
            "--bell-fd": place.bell_fd,
            "--reader": place.index,
            "--num-readers": place.num_readers,
            "--link-fd": link_fd,
        }
        words = [word for name, value in options.items() for word in (name, f"{value}")]
        # The kernel, on Linux, ends a process with the thread that has started it.
        ends_with_parent = ["--ends-with-parent"] if threading.current_thread() is threading.main_thread() else []
        with ctrl_c_blocked():
            self._process = subprocess.Popen(
                module_command(_MODULE, *words, *ends_with_parent),
                pass_fds=(place.ring_fd, place.bell_fd, link_fd),
                env={**os.environ, "PYTHONSAFEPATH": "1"},
                stdin=subprocess.PIPE,
            )

    def begin(self, options: Message) -> None:
        """Tells it what to serve, once. Does nothing if it has ended, of which its link tells.

        Options are a few KiB, which a pipe has room for, so this never waits.
        """
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as pipe:
            pipe.write(encode(options))

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
        assert self._process.stdin is not None
        self._process.stdin.close()  # one that was never told to begin ends by that
        try:
            self._process.wait(max(timeout_s, 0.0))
        except subprocess.TimeoutExpired:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_KILL_TIMEOUT_S)
            return False
        return True
