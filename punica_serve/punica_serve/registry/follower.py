"""Keeps a snapshot up to date with the database."""

import asyncio
import logging

from punica_serve.errors import RegistryUnavailable
from punica_serve.links.backoff import Backoff
from punica_serve.registry.database import Database
from punica_serve.registry.reading import next_snapshot
from punica_serve.registry.shared_adapters import SharedAdapters
from punica_serve.registry.snapshot import RegistrySnapshot

#: Polling interval: how late a change by another frontend is noticed.
POLL_S = 0.2
#: Longest time between attempts while the database is down.
_MAX_BACKOFF_S = 2.0

logger = logging.getLogger(__name__)


class Follower:
    """Replaces the snapshot with newer ones. While the database is down, the last snapshot stays."""

    def __init__(self, database: Database, shared: SharedAdapters) -> None:
        self._database = database
        self._nothing = RegistrySnapshot(shared=shared)
        self.snapshot = self._nothing
        #: The file that the snapshot was read from, on SQLite.
        self._file: object = None
        #: The failure of the last read, if it failed.
        self._failure: RegistryUnavailable | None = None
        self._reading = asyncio.Lock()
        #: Number of reads that have ended, successful or not.
        self._num_readings = 0

    @property
    def is_away(self) -> bool:
        """Whether the database failed to answer the last read."""
        return self._failure is not None

    async def refresh(self) -> RegistrySnapshot:
        """Returns a snapshot at least as new as the database at the time of the call. Raises RegistryUnavailable.

        Concurrent calls share one read, which begins after all of them.
        """
        enough = self._num_readings + (2 if self._reading.locked() else 1)
        try:
            async with asyncio.timeout(self._database.deadline_s), self._reading:
                if self._num_readings < enough:
                    await self._read()
        except TimeoutError as error:
            raise RegistryUnavailable(f"the registry was not read within {self._database.deadline_s:g} s") from error
        if self._failure:
            raise RegistryUnavailable(self._failure.message, detail=self._failure.detail)
        return self.snapshot

    async def poll(self) -> None:
        """Reads the database if it has changed, or if nobody can tell. Raises RegistryUnavailable.

        A read takes dozens of switches between threads, and most commits only write usage.
        """
        if self.is_away or await self._database.revision() != (self._file, self.snapshot.revision):
            await self.refresh()

    async def follow(self) -> None:
        """Polls until cancelled."""
        backoff = Backoff(POLL_S, _MAX_BACKOFF_S, reset_after_s=POLL_S)
        while True:
            try:
                await self.poll()
                wait_s = POLL_S
                backoff.after(POLL_S)
            except RegistryUnavailable:
                wait_s = backoff.after(0.0)
            await asyncio.sleep(wait_s)

    async def _read(self) -> None:
        was_away = self.is_away
        try:
            async with self._database.reading() as connection:
                file = self._database.file_of(connection)
                # Another file's revisions say nothing about what was read from this one.
                before = self.snapshot if file == self._file else self._nothing
                self.snapshot = await next_snapshot(connection, before)
                self._file = file
            self._failure = None
            if was_away:
                logger.info("the registry is available again")
        except RegistryUnavailable as error:
            self._failure = error
            if not was_away:
                logger.warning("%s", error)
        self._num_readings += 1
