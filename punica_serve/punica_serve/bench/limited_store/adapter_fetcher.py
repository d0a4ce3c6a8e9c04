"""The engine's side of the process that fetches adapters from a store."""

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock, Thread
from typing import IO, Any

import msgspec

from punica_serve.bench.limited_store.child_program import child_program, end_child
from punica_serve.errors import AdapterRejected, StoreUnavailable
from punica_serve.learned_types import learned
from punica_serve.protocol import AdapterFetched, AdapterRef

_MODULE = "punica_serve.bench.limited_store.fetch_process"


class AdapterFetcher:
    """Asks the process, and hears its answers on a thread."""

    def __init__(self, process: int, requests: IO[bytes], answers: IO[bytes]) -> None:
        #: Its number.
        self.process = process
        self._requests = requests
        self._answers = answers
        self._fetches: dict[str, Future[Path]] = {}
        self._has_ended = False
        #: Guards the two above.
        self._lock = Lock()

    def fetch(self, ref: AdapterRef) -> "Future[Path]":
        """The adapter's folder on this machine, AdapterRejected or StoreUnavailable. Before its answer it is shared."""
        future: Future[Path] = Future()
        with self._lock:
            if ref.digest in self._fetches:
                return self._fetches[ref.digest]
            if not self._has_ended:
                self._fetches[ref.digest] = future
                with suppress(OSError):  # its output ends too, which ends the fetch
                    self._requests.write(msgspec.json.encode(ref) + b"\n")
                    self._requests.flush()
                return future
        future.set_exception(_gone())
        return future

    def hear(self) -> None:
        """Passes answers on until the process has ended."""
        for line in self._answers:
            answer = msgspec.json.decode(line, type=learned(AdapterFetched))
            with self._lock:
                future = self._fetches.pop(answer.digest)
            if answer.folder is not None:
                future.set_result(Path(answer.folder))
            else:
                words = answer.error.message if answer.error else "no reason was given"
                future.set_exception(AdapterRejected(words) if answer.is_permanent else StoreUnavailable(words))
        with self._lock:
            self._has_ended = True
        for future in self._fetches.values():
            future.set_exception(_gone())


@contextmanager
def adapter_fetcher(folder: Path, budget_bytes: int, options: Mapping[str, Any]) -> Iterator[AdapterFetcher]:
    """Fetches to ``folder``, a host's adapter cache. ``options``: fsspec's, for the store."""
    with child_program(_MODULE, [str(folder), str(budget_bytes), json.dumps(dict(options))]) as child:
        assert child.stdin is not None and child.stdout is not None
        fetcher = AdapterFetcher(child.pid, child.stdin, child.stdout)
        hearing = Thread(target=fetcher.hear, name="adapter-fetcher")
        hearing.start()
        try:
            yield fetcher
        finally:
            end_child(child)  # which ends its output
            hearing.join()


def _gone() -> StoreUnavailable:
    return StoreUnavailable("the benchmark's process that fetches adapters has ended; its error is above")
