"""Fetches adapters from a store to a folder, in a process of its own, as a runner's supervisor does for its workers.

python -m punica_serve.bench.limited_store.fetch_process FOLDER BUDGET_BYTES OPTIONS     # fsspec's, as JSON

Each line of its input is an adapter, and each of its output an answer, as JSON. It ends with its input.
"""

import asyncio
import json
import sys
from pathlib import Path

import msgspec

from punica_serve.errors import AdapterRejected, PunicaError
from punica_serve.learned_types import learned
from punica_serve.protocol import AdapterFetched, AdapterRef, WireError
from punica_serve.store.disk_cache import DiskCache


async def _serve(cache: DiskCache) -> None:
    """The benchmark asks for a few adapters at a time."""
    async with asyncio.TaskGroup() as fetches:
        while line := await asyncio.to_thread(sys.stdin.buffer.readline):
            fetches.create_task(_answer(cache, msgspec.json.decode(line, type=learned(AdapterRef))))
        await cache.close()  # nobody waits for what is still fetched


async def _answer(cache: DiskCache, ref: AdapterRef) -> None:
    try:
        answer = AdapterFetched(ref.digest, str(await cache.fetch(ref)))
        cache.release(ref.digest)
    except PunicaError as error:
        is_permanent = isinstance(error, AdapterRejected)
        answer = AdapterFetched(ref.digest, error=WireError.of(error), is_permanent=is_permanent)
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.buffer.flush()


async def _main() -> None:
    folder, budget_bytes, options = sys.argv[1:]
    await _serve(DiskCache(Path(folder), int(budget_bytes), json.loads(options)))


if __name__ == "__main__":
    asyncio.run(_main())
