"""A store of a limited rate, from which an engine gets adapters as a runner's worker does."""

import statistics
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from punica_serve.bench.limited_store.adapter_fetcher import AdapterFetcher, adapter_fetcher
from punica_serve.bench.limited_store.store_link import Store, StoreLink, is_spoken, store_server
from punica_serve.errors import ConfigError
from punica_serve.protocol import AdapterRef

#: Files that are read for one measurement of the rate.
_NUM_READ = 3


@dataclass(frozen=True, slots=True)
class LimitedStore:
    """A server, and the process that downloads from it to a host's adapter cache."""

    store: Store
    link: StoreLink
    fetcher: AdapterFetcher
    #: Bytes per second of its files, each read alone.
    rates: list[float] = field(default_factory=list)

    def fetch(self, ref: AdapterRef) -> "Future[Path]":
        """Downloads an adapter's files: an engine's ``Fetch``."""
        return self.fetcher.fetch(ref)

    def remote(self, ref: AdapterRef) -> AdapterRef:
        """An adapter in the server's folder, by its URI there."""
        return replace(ref, uri=self.link.uri(self.store, ref))

    def measure_rate(self, refs: Sequence[AdapterRef]) -> None:
        """Reads some of these adapters' files, while nothing else runs."""
        self.rates.extend(self.link.measured_rate(ref) for ref in refs[:_NUM_READ])

    @property
    def rate(self) -> float:
        """The median of those that were measured."""
        return statistics.median(self.rates)


@contextmanager
def limited_store(
    store: Store, bytes_per_s: float, folder: Path, cache: Path, budget_bytes: int
) -> Iterator[LimitedStore]:
    """Serves ``folder``, and downloads to ``cache``. Raises ConfigError if that can't be."""
    if not is_spoken(store):
        raise ConfigError(
            f"adapters over {store} need a package that is not installed; install the extra `{store.lower()}`"
        )
    with (
        store_server(folder, bytes_per_s) as link,
        adapter_fetcher(cache, budget_bytes, link.options(store)) as fetcher,
    ):
        yield LimitedStore(store, link, fetcher)
