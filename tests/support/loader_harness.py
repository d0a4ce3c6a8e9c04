"""An adapter loader without an engine round it, driven by hand as the step loop drives it."""

import time
from collections.abc import Callable
from threading import Event
from typing import Any, TypeVar

import pytest
import torch

from punica_serve.adapters.folder import UnverifiedAdapter, begin_load
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.engine.adapters import reader as adapter_reader
from punica_serve.engine.adapters.entry import AdapterFailure
from punica_serve.engine.adapters.host_cache import HostCache
from punica_serve.engine.adapters.loader import AdapterLoader
from punica_serve.engine.adapters.lora_pool import LoraPool
from punica_serve.engine.adapters.packed_store import PackedStore
from punica_serve.engine.memory.pinned_memory import open_host_memory
from punica_serve.protocol import AdapterRef
from waits import DEADLINE_S

CPU = torch.device("cpu")

Report = TypeVar("Report")


def poll_until(poll: Callable[[], list[Report]], progress: Event, condition: Callable[[], bool]) -> list[Report]:
    """All that a loader reports until the condition holds, polled whenever its threads have made progress."""
    reports, deadline_s = poll(), time.monotonic() + DEADLINE_S
    while not condition():
        assert progress.wait(deadline_s - time.monotonic()), "the loader makes no progress"
        progress.clear()
        reports += poll()
    return reports


class LoaderHarness:
    """A loader over the real threads; a test plays the step loop."""

    def __init__(
        self,
        model: ModelConfig,
        num_pages: int,
        host_bytes: int = 1 << 24,
        device: torch.device = CPU,
        packed_store: PackedStore | None = None,
    ) -> None:
        self.progress = Event()
        self.newest_end: Any = None
        self.pool = LoraPool(model, num_pages=num_pages, dtype=torch.float32, device=device)
        self.host_cache = HostCache(open_host_memory(host_bytes, device))
        self.loader = AdapterLoader(
            self.pool,
            self.host_cache,
            model,
            torch.float32,
            self.progress.set,
            lambda: self.newest_end,
            packed_store=packed_store,
        )

    def until(self, condition: Callable[[], bool]) -> list[AdapterFailure]:
        return poll_until(self._poll, self.progress, condition)

    def _poll(self) -> list[AdapterFailure]:
        failures = self.loader.poll()
        self.loader.adapters.check_invariants()
        return failures

    def load(self, *refs: AdapterRef) -> None:
        for ref in refs:
            self.loader.acquire(ref)
        self.until(lambda: all(self.loader.adapters.is_ready(ref.digest) for ref in refs))


def gate_reads(monkeypatch: pytest.MonkeyPatch, gate: Event) -> list[str]:
    """Lets no adapter's files be read before the gate opens. The digests whose reads have begun, as they begin."""
    reads: list[str] = []

    def load(ref: AdapterRef, *rest: Any) -> UnverifiedAdapter:
        reads.append(ref.digest)
        assert gate.wait(DEADLINE_S)
        return begin_load(ref, *rest)

    monkeypatch.setattr(adapter_reader, "begin_load", load)
    return reads
