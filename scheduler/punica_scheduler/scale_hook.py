"""The operator's command for scale advice: run with each new advice as JSON on its standard input.

It runs asynchronously, one at a time, and is killed at its timeout. Only the latest pending advice is delivered. A
failure is logged in one line, and the next advice is tried again.
"""

import asyncio
import contextlib
import json
import logging
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from typing import Never

from punica_serve.numbers import counted
from punica_serve.process.death_reason import death_reason
from punica_serve.process.run import TOKEN_ENV
from punica_serve.protocol import ScaleAdvice

log = logging.getLogger(__name__)

_STDERR = 2


class ScaleHook:
    """Takes advice at any time, and hands it to the command while ``running``. Without a command it only logs it."""

    def __init__(self, command: Sequence[str] | None, timeout_s: float) -> None:
        self._command = command
        self._timeout_s = timeout_s
        self._newest: ScaleAdvice | None = None
        self._has_news = asyncio.Event()

    def advise(self, advice: ScaleAdvice) -> None:
        log.info("advice: %s", _in_words(advice))
        self._newest = advice
        self._has_news.set()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Runs the command on advice while the context is open; one that still runs at the end is killed."""
        if self._command is None:
            yield
            return
        calling = asyncio.create_task(self._keep_calling(self._command))
        try:
            yield
        finally:
            calling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await calling

    async def _keep_calling(self, command: Sequence[str]) -> Never:
        while True:
            await self._has_news.wait()
            self._has_news.clear()
            assert self._newest is not None
            if (failure := await self._failure_of_call(command, self._newest)) is not None:
                log.error("the scale hook %s failed: %s", command[0], failure)

    async def _failure_of_call(self, command: Sequence[str], advice: ScaleAdvice) -> str | None:
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=PIPE,
                stdout=_STDERR,  # its words belong to the scheduler's log
                env={name: value for name, value in os.environ.items() if name != TOKEN_ENV},
                start_new_session=True,
            )
        except OSError as error:
            return f"it can't be started: {error.strerror or error}"
        try:
            async with asyncio.timeout(self._timeout_s):
                await process.communicate(_document(advice))
        except TimeoutError:
            return f"it has not ended within {self._timeout_s:g} s and is killed"
        finally:
            await _end(process)
        return death_reason(process.returncode) if process.returncode else None


async def _end(process: Process) -> None:
    """Kills it, if it still runs, with all that it has started; one that runs as another user is waited for."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


def _in_words(advice: ScaleAdvice) -> str:
    more = counted(advice.num_more_gpus, "more GPU") if advice.num_more_gpus else ""
    releasable = ", ".join(advice.releasable_runners)
    parts = [part for part in (more, releasable and f"these runners may go: {releasable}") if part]
    return "; ".join(parts) or "as many GPUs as there are"


def _document(advice: ScaleAdvice) -> bytes:
    document = {"num_more_gpus": advice.num_more_gpus, "releasable_runners": list(advice.releasable_runners)}
    return json.dumps(document).encode() + b"\n"
