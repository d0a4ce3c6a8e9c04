"""Joins a group on a thread of its own, while its process starts with the rest."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait

from punica_serve.base_model.rank import Rank
from punica_serve.models.collectives import Collectives

#: From one look at the thread to the next.
_WAIT_S = 1.0


class Joining:
    """The joining of one rank, and its result.

    NCCL takes a second or more to connect GPUs, and leaves the interpreter to other threads meanwhile.
    """

    def __init__(self, rank: Rank, join: Callable[[], Collectives], *, in_background: bool) -> None:
        """``in_background``: ``join`` is called on the thread; otherwise at once, and this raises what it does."""
        self.rank = rank
        self._join = join
        self._joined: Future[Collectives] = Future()
        if in_background:
            threading.Thread(target=self._run, name="joining", daemon=True).start()
        else:
            self._joined.set_result(join())

    @classmethod
    def done(cls, collectives: Collectives) -> "Joining":
        """The joining of a rank that is in its group already."""
        return cls(collectives.rank, lambda: collectives, in_background=False)

    def wait(self, on_wait: Callable[[], None] = lambda: None) -> Collectives:
        """The exchanges of the group. ``on_wait`` is called every second. Raises what ``join`` does."""
        while not wait([self._joined], _WAIT_S).done:
            on_wait()
        return self._joined.result()

    def _run(self) -> None:
        try:
            self._joined.set_result(self._join())
        except BaseException as error:
            self._joined.set_exception(error)
