"""Adapters in host memory, packed and ready to be copied to the device: least recently used go first."""

from collections import OrderedDict
from threading import Lock

from punica_serve.engine.packing import PackedAdapter


class HostCache:
    """A budget of bytes, shared by the loader's threads. An adapter larger than the budget is simply not kept."""

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._used_bytes = 0
        self._adapters: OrderedDict[str, PackedAdapter] = OrderedDict()
        self._lock = Lock()

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    def get(self, digest: str) -> PackedAdapter | None:
        with self._lock:
            adapter = self._adapters.get(digest)
            if adapter is not None:
                self._adapters.move_to_end(digest)
            return adapter

    def put(self, digest: str, adapter: PackedAdapter) -> None:
        with self._lock:
            if digest in self._adapters or adapter.num_bytes > self._budget_bytes:
                return
            self._adapters[digest] = adapter
            self._used_bytes += adapter.num_bytes
            while self._used_bytes > self._budget_bytes:
                _, oldest = self._adapters.popitem(last=False)
                self._used_bytes -= oldest.num_bytes
