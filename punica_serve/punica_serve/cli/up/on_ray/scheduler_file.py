"""Finds the scheduler through Ray, and keeps its URL in a file for a process to read."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import ray
from ray.exceptions import RayError

from punica_serve.cli.up.on_ray.roles import SCHEDULER, Place

POLL_INTERVAL_S = 0.5
#: Timeout of one query. An actor that is being moved does not answer, but the next query finds it.
ASK_TIMEOUT_S = 5.0


@asynccontextmanager
async def scheduler_url_file(folder: Path, namespace: str) -> AsyncIterator[Path]:
    """A file with the scheduler's URL, once that is known; kept up to date while the context is open."""
    file = folder / "scheduler-url"
    is_written = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        refreshing = group.create_task(_keep_refreshing(file, namespace, is_written))
        await is_written.wait()
        try:
            yield file
        finally:
            refreshing.cancel()


async def _keep_refreshing(file: Path, namespace: str, is_written: asyncio.Event) -> None:
    """While the new URL is unknown, the file keeps the old one."""
    while True:
        with suppress(RayError, ValueError, TimeoutError):  # ValueError: no actor has that name yet
            place = await _scheduler_place(namespace)
            if place.url is not None:
                _replace(file, place.url)
                is_written.set()
        await asyncio.sleep(POLL_INTERVAL_S)


async def _scheduler_place(namespace: str) -> Place:
    scheduler = await asyncio.to_thread(ray.get_actor, SCHEDULER, namespace)
    async with asyncio.timeout(ASK_TIMEOUT_S):
        place: Place = await scheduler.where.remote()
        return place


def _replace(file: Path, text: str) -> None:
    """Atomically, so that nobody reads a partial file."""
    new = file.with_suffix(".new")
    new.write_text(text)
    os.replace(new, file)
