"""Ever new versions of one adapter. Each answers in another notation than the one before it."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files

import httpx

from punica_serve.bench.hot_reload.load import INTEGER, RequestLoad
from punica_serve.bench.hot_reload.versions import VersionHistory
from punica_serve.demo.notations import NOTATIONS
from punica_serve.errors import RequestFailed

#: The adapter that changes; the others are the demo's own.
CHANGING = "changing"

_CONFIG_NAME, _WEIGHTS_NAME = "adapter_config.json", "adapter_model.safetensors"


@dataclass(frozen=True, slots=True)
class Reload:
    """One registration, in seconds since the start."""

    began_s: float
    registered_s: float


class Reloads:
    """Registers the adapter by upload whenever asked to."""

    def __init__(self, client: httpx.AsyncClient, history: VersionHistory, now_s: Callable[[], float]) -> None:
        self._client = client
        self._history = history
        self._now_s = now_s
        self._notations = list(NOTATIONS)
        self.done: list[Reload] = []

    async def keep_reloading(
        self, count: int, every_s: float, load: RequestLoad, on_reload: Callable[[int], object]
    ) -> None:
        """Reloads every ``every_s``, or as soon as the last reload is done: registered, and used by one request."""
        started_s = self._now_s()
        for number in range(1, count + 1):
            await asyncio.sleep(started_s + number * every_s - self._now_s())
            await self.reload()
            await load.ask_now(CHANGING)
            await asyncio.to_thread(on_reload, number)

    async def reload(self) -> None:
        """Raises RequestFailed."""
        number = len(self.done)
        notation = self._notations[number % len(self._notations)]
        version = self._history.begin(NOTATIONS[notation](INTEGER), self._now_s())
        answer = await self._client.post("/v1/adapters", params={"name": CHANGING}, files=_files(notation, number))
        if answer.status_code != httpx.codes.CREATED:
            raise RequestFailed(f"reload {number}: HTTP {answer.status_code}: {answer.text[:500]}")
        version.registered_s = self._now_s()
        self.done.append(Reload(version.began_s, version.registered_s))


def _files(notation: str, number: int) -> dict[str, tuple[str, bytes]]:
    """The demo's adapter in unique bytes: white space changes nothing in JSON, but changes the digest."""
    folder = files("punica_serve.demo") / "adapters" / notation
    config = (folder / _CONFIG_NAME).read_bytes() + b" " * number + b"\n"
    weights = (folder / _WEIGHTS_NAME).read_bytes()
    return {name: (name, content) for name, content in ((_CONFIG_NAME, config), (_WEIGHTS_NAME, weights))}
