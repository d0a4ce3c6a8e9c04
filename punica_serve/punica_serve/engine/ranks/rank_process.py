"""Another rank's process as its leader sees it."""

import contextlib
import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Sequence

from punica_serve.engine.ranks.doorbell import Doorbell
from punica_serve.engine.ranks.rank_link import LinkEnded, RankLink
from punica_serve.engine.ranks.rank_messages import RankToLeader
from punica_serve.process.run import death_reason
from punica_serve.protocol import Message

#: From the end of a process's socket to the end of the process.
_EXIT_GRACE_S = 1.0
#: From a kill to the end of the process, which a driver may delay.
_KILL_TIMEOUT_S = 5.0


class RankProcess:
    """A started process. It ends with its leader: by the end of their socket and, on Linux, by the kernel's doing."""

    def __init__(self, index: int, device: str, command: Sequence[str], ring_fd: int) -> None:
        """``command``: the command line, to which the file descriptors are appended."""
        self.index = index
        self.name = f"rank {index} ({device})"
        #: Its GPU's, once it has said hello; "" on a CPU.
        self.gpu_uuid = ""
        self.bell = Doorbell()
        ours, theirs = multiprocessing.Pipe()
        self.link = RankLink(ours, RankToLeader)
        fds = (ring_fd, self.bell.fd, theirs.fileno())
        names = ("--ring-fd", "--bell-fd", "--link-fd")
        try:
            self._process = subprocess.Popen(
                [*command, *(word for name, fd in zip(names, fds, strict=True) for word in (name, str(fd)))],
                pass_fds=fds,
                env={**os.environ, "PYTHONSAFEPATH": "1"},
                stdin=subprocess.DEVNULL,
            )
        except BaseException:
            self.link.close()
            self.bell.close()
            raise
        finally:
            theirs.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, message: Message) -> None:
        """Drops the message if the process has ended, of which its link tells."""
        with contextlib.suppress(LinkEnded):
            self.link.send(message)

    def end_reason(self) -> str:
        """Why it has ended, in words; its link has."""
        try:
            return death_reason(self._process.wait(_EXIT_GRACE_S))
        except subprocess.TimeoutExpired:
            return "it has closed its link"

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
        finally:
            self.link.close()
            self.bell.close()
        return True


def rank_command(module: str, options: dict[str, str]) -> list[str]:
    """The command line of a rank's process."""
    ends_with_thread = ["--ends-with-parent"] if threading.current_thread() is threading.main_thread() else []
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    return [sys.executable, "-P", "-m", module, *words, *ends_with_thread]
