"""The order of a GPU's copies, over a stream that only records them."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from punica_serve.base_model.model_config import ModelConfig
from punica_serve.engine.adapters.copy_batch import CopyBatch
from punica_serve.engine.adapters.lora_pool import LoraPool
from punica_serve.engine.adapters.packing import PackedAdapter


class _NotingEvent:
    notes: list[str]

    def __init__(self, *, blocking: bool = False, enable_timing: bool) -> None:
        self.is_end = blocking

    def record(self) -> None:
        self.notes.append("record")

    def synchronize(self) -> None:
        assert self.is_end
        self.notes.append("wait")


def test_copies_that_are_queued_are_waited_for_when_another_fails(
    tiny_model: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller frees the source next."""
    pool = LoraPool(tiny_model, num_pages=1, dtype=torch.float32, device=torch.device("cpu"))
    notes: list[str] = []

    def queue(_: CopyBatch, layers: slice, stream: Any) -> None:
        notes.append("copy")
        if layers.start:
            raise RuntimeError("the device is ill")

    monkeypatch.setattr(pool, "_stream", SimpleNamespace())
    monkeypatch.setattr(CopyBatch, "queue", queue)
    monkeypatch.setattr(_NotingEvent, "notes", notes, raising=False)
    monkeypatch.setattr(torch.cuda, "Event", _NotingEvent)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    with pytest.raises(RuntimeError, match="ill"):
        pool.write({}, PackedAdapter({}))
    assert notes == ["record", "copy", "copy", "record", "wait"]
