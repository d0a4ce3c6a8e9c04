"""Processes as a platform keeps them: started with a log each, started again when they die, killed when they freeze."""

import asyncio
import os
import signal
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from process_tree import command_line, descendants
from punica_serve.cli.watchdog import Watchdog, watchdog
from punica_serve.process.death_reason import death_reason
from punica_serve.process.run import LIFELINE_ENV

#: systemd's RestartSec.
RESTART_S = 0.1
#: And its WatchdogSec: a process that gives no sign of life for so long is killed.
WATCHDOG_S = 4.0
STOP_TIMEOUT_S = 20.0


@dataclass(eq=False)
class KeptProcess:
    """One process, kept running by ``keep_running`` until that is cancelled."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    lifeline_fd: int
    #: Deaths that nobody here was the cause of, in words: each is a bug.
    unexpected_deaths: list[str] = field(default_factory=list)
    _process: Process | None = None
    #: This life was ended from here.
    _is_doomed: bool = False

    @property
    def pid(self) -> int:
        """0 between two lives."""
        return self._process.pid if self._process is not None and self._process.returncode is None else 0

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def freeze(self) -> None:
        """Stands still until the watchdog ends it."""
        self._signal(signal.SIGSTOP)

    def terminate(self) -> None:
        """Asks it to leave without anyone noticing."""
        self._signal(signal.SIGTERM)

    def children(self, role: str) -> dict[int, str]:
        """Process ids below this one whose command line has ``role`` in it, and their command lines."""
        lines = {pid: command_line(pid) for pid in descendants(self.pid)} if self.pid else {}
        return {pid: line for pid, line in lines.items() if role in line}

    @property
    def resident_bytes(self) -> int:
        """Resident memory of the process."""
        num_pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return num_pages * os.sysconf("SC_PAGE_SIZE")

    def log_text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    async def keep_running(self) -> None:
        while True:
            returncode = await self._run_once()
            if not self._is_doomed:
                self.unexpected_deaths.append(f"the {self.name} died: {death_reason(returncode)}; see {self.log}")
            await asyncio.sleep(RESTART_S)

    def _signal(self, signum: int) -> None:
        if self.pid:
            with suppress(ProcessLookupError):  # it is dead and reaped, and the event loop is yet to hear of it
                os.kill(self.pid, signum)
                self._is_doomed = True

    async def _run_once(self) -> int:
        with ExitStack() as stack:
            heard = stack.enter_context(watchdog(WATCHDOG_S))
            output = stack.enter_context(self.log.open("ab"))
            self._is_doomed = False
            self._process = await asyncio.create_subprocess_exec(
                *self.command,
                env={**os.environ, **self.environment, **heard.environment, LIFELINE_ENV: str(self.lifeline_fd)},
                pass_fds=(self.lifeline_fd,),
                stdin=DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            watching = asyncio.create_task(self._watch(heard))
            try:
                return await self._process.wait()
            finally:
                watching.cancel()
                await self._stop(self._process)

    async def _watch(self, heard: Watchdog) -> None:
        await heard.until_frozen()
        self.kill()

    async def _stop(self, process: Process) -> None:
        if process.returncode is None:
            process.send_signal(signal.SIGCONT)
            process.send_signal(signal.SIGINT)
            try:
                await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
            except TimeoutError:
                self.unexpected_deaths.append(f"the {self.name} did not stop within {STOP_TIMEOUT_S:g} s")
                process.kill()
                await process.wait()
