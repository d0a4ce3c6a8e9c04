"""Processes that read packed files for workers, as tests begin their loads and look at them."""

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch

from packed_worker import CPU, Worker
from punica_serve.base_model.lora_layout import pages_needed
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.engine.adapters.host_cache import HostCopy
from punica_serve.engine.adapters.load_trace import LoadTrace
from punica_serve.engine.adapters.lora_pool import LoraPool
from punica_serve.engine.adapters.page_stream import PageStream
from punica_serve.engine.adapters.reader_process import ReaderProcess
from punica_serve.protocol import AdapterRef
from waits import DEADLINE_S

#: Begins a load.
Start = Callable[[Worker, AdapterRef], Future[HostCopy]]


def streaming(model: ModelConfig, pool: LoraPool | None = None) -> Start:
    """Loads as the step loop begins them, with pages that are filled meanwhile."""
    pool = pool or LoraPool(model, num_pages=4, dtype=torch.float32, device=CPU)

    def start(worker: Worker, ref: AdapterRef) -> Future[HostCopy]:
        pages = pool.allocate(pages_needed(ref.ranks))
        load = worker.reader.start(ref, PageStream(pool, pages, (), None, lambda: None, LoadTrace(ref.digest)))
        load.add_done_callback(lambda _: pool.free(pages))
        return load

    return start


def evict(worker: Worker, copy: HostCopy) -> None:
    worker.cache.release(copy)
    worker.cache.evict(copy.digest)


def process_of(worker: Worker) -> ReaderProcess:
    assert worker.store._process is not None
    return worker.store._process


def pid_of(worker: Worker) -> int:
    child = process_of(worker)._child
    assert child is not None
    return child.popen.pid


def lanes_of(worker: Worker) -> dict[int, Any]:
    child = process_of(worker)._child
    assert child is not None
    return child.free_lanes


def wait_until_ready(process: ReaderProcess) -> None:
    assert process.start(DEADLINE_S), "it does not become ready"


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "process that reads" in record.getMessage()]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
