"""Wakes a process that sleeps until there is something to read: an eventfd, which counts and so loses no ring."""

import os
import select


class Doorbell:
    """``ring`` in one process ends ``wait`` in another; a ring before the wait ends it at once."""

    def __init__(self, fd: int | None = None) -> None:
        """``fd``: the inherited one of another process's bell."""
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) if fd is None else fd
        self._poll = select.poll()
        self._poll.register(self.fd, select.POLLIN)

    def ring(self) -> None:
        os.eventfd_write(self.fd, 1)

    def wait(self, timeout_s: float) -> None:
        """Returns after a ring, or after the timeout."""
        if self._poll.poll(timeout_s * 1e3):
            os.eventfd_read(self.fd)

    def close(self) -> None:
        os.close(self.fd)
