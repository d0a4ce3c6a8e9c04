"""Adapters with digests of their own that share the bytes of a few: thousands of them would not fit host memory.

An alias is an entry of the host cache whose packed weights are views of another adapter's, in pinned memory like its
own. Each is therefore loaded by itself, as a whole, over the same link; only the bytes' values repeat. The other ranks
of a group make theirs when they copy it.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from punica_serve.adapters.shared_adapter import shared_adapter
from punica_serve.engine.engine import Engine
from punica_serve.errors import ConfigError
from punica_serve.protocol import AdapterRef


class SharedBytes:
    """A few random adapters of one rank in an engine's host memory, and their aliases."""

    def __init__(self, engine: Engine, own: Sequence[AdapterRef]) -> None:
        """``own``: of one rank. Raises ConfigError if one of them is not in host memory."""
        self._engine = engine
        self.own = own
        first = engine.host_cache.get(own[0].digest)
        if first is None:
            message = "`engine.host_cache_bytes` is too small for the adapters of the series; raise it"
            raise ConfigError(message, param="engine.host_cache_bytes")
        #: Bytes of one adapter, or of the leader's share of it.
        self.num_bytes = first.packed.num_bytes
        engine.host_cache.release(first)

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
        origin = self.own[number % len(self.own)]
        cache = self._engine.host_cache
        cache.release(cache.share(digest, origin.digest))
        return shared_adapter(origin, digest)
