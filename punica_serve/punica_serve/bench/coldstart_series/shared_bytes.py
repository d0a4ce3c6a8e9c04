"""Adapters with digests of their own that share the bytes of a few: thousands of them would not fit host memory.

An alias is an entry of the host cache whose packed weights are views of another adapter's, in pinned memory like its
own. Each is therefore loaded by itself, as a whole, over the same link; only the bytes' values repeat.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import msgspec
import torch

from punica_serve.bench.random_adapters import fill_host_cache
from punica_serve.engine.engine import Engine
from punica_serve.protocol import AdapterRef

#: Bytes that the host cache reserves for an alias: the least that it gives.
ALIAS_BYTES = 4096


class SharedBytes:
    """A few random adapters of one rank in an engine's host memory, and their aliases."""

    def __init__(
        self,
        engine: Engine,
        count: int,
        rank: int,
        dtype: torch.dtype,
        modules: Sequence[str],
        on_made: Callable[[], None],
    ) -> None:
        self._engine = engine
        self.own = fill_host_cache(engine, count, rank, dtype, on_made, modules)
        #: Held for good: the host cache must not evict what aliases read.
        self._copies = [copy for ref in self.own if (copy := engine.host_cache.get(ref.digest)) is not None]

    @property
    def num_bytes(self) -> int:
        """Bytes of one adapter."""
        return self._copies[0].packed.num_bytes

    @contextmanager
    def aliases(self, name: str, numbers: Iterable[int]) -> Iterator[dict[int, AdapterRef]]:
        """An alias for each number; at the end they leave device and host. No request may use them any more."""
        refs = {number: self._alias(f"{name}-{number}", number) for number in dict.fromkeys(numbers)}
        try:
            yield refs
        finally:
            for ref in refs.values():
                self._engine.evict(ref.digest)

    def _alias(self, digest: str, number: int) -> AdapterRef:
        place = number % len(self.own)
        packed = self._copies[place].packed
        cache = self._engine.host_cache
        cache.release(cache.make(digest, ALIAS_BYTES, lambda _: packed))
        return msgspec.structs.replace(self.own[place], digest=digest)
