"""The processes that `up` starts. Each is owned by one task that starts, restarts and stops it."""

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Never

from punica_serve.cli.watchdog import Watchdog, watchdog
from punica_serve.errors import ConfigError
from punica_serve.links.backoff import Backoff
from punica_serve.process.death_reason import death_reason
from punica_serve.process.run import EXIT_USER_MISTAKE, LIFELINE_ENV, STOP_TIMEOUT_S

#: A process ends itself after STOP_TIMEOUT_S; one that takes longer than this is unable to.
KILL_TIMEOUT_S = STOP_TIMEOUT_S + 2.0

#: Backoff before a dead process restarts, and how long it must live to reset it. A process does not report that it
#: works, so this is far more than the time it needs to start.
RESTART_FIRST_S = 0.25
RESTART_HIGHEST_S = 15.0
HEALTHY_LIFE_S = 60.0
#: A process whose event loop stalls for this long, as after SIGSTOP, is killed and restarted.
WATCHDOG_TIMEOUT_S = 10.0

log = logging.getLogger(__name__)


@asynccontextmanager
async def kept_running(children: Sequence["Child"]) -> AsyncIterator[None]:
    """Keeps processes running while the context is open, and stops them all in parallel at the end.

    Raises ConfigError (in an exception group) when one exits because of a user's mistake.
    """
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(child.keep_running(), name=child.name) for child in children]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


@dataclass(frozen=True)
class Child:
    """How to start one process."""

    name: str
    command: Sequence[str]
    lifeline_fd: int
    #: Added to this process's environment. May hold secrets.
    environment: Mapping[str, str] = field(repr=False)

    async def keep_running(self) -> Never:
        """Starts the process and restarts it whenever it ends; stops it when cancelled.

        Raises ConfigError when the process exits because of a user's mistake.
        """
        backoff = Backoff(RESTART_FIRST_S, RESTART_HIGHEST_S, reset_after_s=HEALTHY_LIFE_S)
        while True:
            returncode, lived_s = await self._run_once()
            if returncode == EXIT_USER_MISTAKE:
                raise ConfigError(f"the {self.name} can't run, for the reason above; everything is stopped")
            wait_s = backoff.after(lived_s)
            end = f"died: {death_reason(returncode)}" if returncode else "ended normally"
            log.warning("the %s %s; restarting it in %.1f s", self.name, end, wait_s)
            await asyncio.sleep(wait_s)

    async def _run_once(self) -> tuple[int, float]:
        """Runs the process to its end. Returns its return code, and how long it lived."""
        with watchdog(WATCHDOG_TIMEOUT_S) as signs:
            process = await asyncio.create_subprocess_exec(
                *self.command,
                env={**os.environ, **self.environment, **signs.environment, LIFELINE_ENV: str(self.lifeline_fd)},
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(self.lifeline_fd,),
                start_new_session=True,  # a Ctrl-C in the terminal reaches only `up`, which stops the others in order
            )
            started_s = time.monotonic()
            guard = asyncio.create_task(self._kill_when_frozen(process, signs))
            try:
                return await process.wait(), time.monotonic() - started_s
            finally:
                guard.cancel()
                await self._stop(process, signs)

    async def _kill_when_frozen(self, process: asyncio.subprocess.Process, signs: Watchdog) -> None:
        await signs.until_frozen()
        log.error("the %s is frozen and is killed", self.name)
        process.kill()

    async def _stop(self, process: asyncio.subprocess.Process, signs: Watchdog) -> None:
        """Stops the process, if it runs, and everything left in its process group.

        Uses SIGINT, as all other processes are stopping too: draining is pointless with nowhere to move requests. A
        process that is still starting has nothing to drain, and SIGINT would print the traceback of its imports.
        """
        if process.returncode is None:
            process.send_signal(signal.SIGINT if signs.has_notified else signal.SIGTERM)
            try:
                await asyncio.wait_for(process.wait(), KILL_TIMEOUT_S)
            except TimeoutError:
                log.error("the %s did not stop within %g s and is killed", self.name, KILL_TIMEOUT_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
