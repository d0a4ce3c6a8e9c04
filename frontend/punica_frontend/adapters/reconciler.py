"""The background task that makes the cluster match the registry: deletions and pins."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Set
from typing import Never

from punica_frontend.adapters.deletions import Deletions
from punica_frontend.adapters.garbage_collector import AdapterGarbageCollector
from punica_frontend.adapters.pins import Pins
from punica_serve.errors import PunicaError
from punica_serve.registry.records import AdapterVersion
from punica_serve.registry.registry import Registry

#: Seconds between two steps of deletions: while a caller waits for one, and otherwise.
BUSY_INTERVAL_S = 0.1
INTERVAL_S = 2.0
PIN_INTERVAL_S = 15.0
STRAY_INTERVAL_S = 30.0
FILE_INTERVAL_S = 600.0
#: Failures shorter than this are not logged: the cluster or the scheduler may be starting.
PATIENCE_S = 60.0

log = logging.getLogger(__name__)


class AdapterReconciler:
    """Runs until cancelled. Failed tasks are retried, and logged once they have failed for PATIENCE_S."""

    def __init__(
        self, registry: Registry, deletions: Deletions, pins: Pins, collector: AdapterGarbageCollector
    ) -> None:
        self._registry = registry
        self._deletions = deletions
        self._tasks = [
            _PeriodicTask("sending pins", pins.send, PIN_INTERVAL_S),
            _PeriodicTask("evicting orphaned adapters", collector.evict_orphans, STRAY_INTERVAL_S),
            _PeriodicTask("removing orphaned files", collector.remove_orphaned_files, FILE_INTERVAL_S),
        ]
        self._deleting = _PeriodicTask("finishing deletions", self._step, 0.0)
        self._round = asyncio.Condition()
        #: The number of steps begun; and the last successful step, as its number and the digests still left.
        self._num_begun = 0
        self._last: tuple[int, Set[str]] = (0, frozenset())
        self._num_waiting = 0
        self._wanted = asyncio.Event()

    async def run(self) -> Never:
        while True:
            await self._deleting.run()
            for task in self._tasks:
                if task.is_due:
                    await task.run()
            self._wanted.clear()
            await self._pause()

    async def wait_deleted(self, deleted: Iterable[AdapterVersion], timeout_s: float) -> bool:
        """Waits until nothing is left of these adapters; returns False at the timeout.

        Bytes that another adapter shares are not waited for.
        """
        digests = {adapter.ref.digest for adapter in deleted} - self._registry.snapshot.digests()
        if not digests:
            return True
        begun = self._num_begun
        self._num_waiting += 1
        self._wanted.set()
        try:
            async with asyncio.timeout(timeout_s), self._round:
                await self._round.wait_for(lambda: self._last[0] > begun and not digests & self._last[1])
                return True
        except TimeoutError:
            return False
        finally:
            self._num_waiting -= 1

    async def _pause(self) -> None:
        if self._num_waiting:
            await asyncio.sleep(BUSY_INTERVAL_S)
            return
        try:
            async with asyncio.timeout(INTERVAL_S):
                await self._wanted.wait()
        except TimeoutError:
            pass

    async def _step(self) -> None:
        self._num_begun += 1
        number = self._num_begun
        left = await self._deletions.step()
        async with self._round:
            self._last = (number, left.keys())
            self._round.notify_all()


class _PeriodicTask:
    """A task that repeats at an interval; after a failure it is due at once."""

    def __init__(self, what: str, do: Callable[[], Awaitable[None]], interval_s: float) -> None:
        self._what = what
        self._do = do
        self._interval_s = interval_s
        self._next_s = 0.0
        #: Since when it has been failing, on the monotonic clock.
        self._failing_since_s: float | None = None
        self._was_logged = False

    @property
    def is_due(self) -> bool:
        return time.monotonic() >= self._next_s

    async def run(self) -> None:
        try:
            await self._do()
        except PunicaError as error:
            self._note_failure(error)
        except Exception:  # a bug in one task must not end the others
            log.exception("%s failed", self._what)
        else:
            self._next_s = time.monotonic() + self._interval_s
            self._note_success()

    def _note_failure(self, error: PunicaError) -> None:
        now_s = time.monotonic()
        if self._failing_since_s is None:
            self._failing_since_s = now_s
        elif not self._was_logged and now_s - self._failing_since_s >= PATIENCE_S:
            log.warning("%s has been failing for %g s; retrying: %s", self._what, PATIENCE_S, error)
            self._was_logged = True

    def _note_success(self) -> None:
        if self._was_logged:
            log.info("%s works again", self._what)
        self._failing_since_s, self._was_logged = None, False
