"""New versions of an adapter under load: an old version leaves nothing behind after its last request."""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from itertools import count
from pathlib import Path
from shutil import rmtree

import pytest
import torch
from msgspec.structs import replace

from punica_runner.step_loop import Command, StepLoop
from punica_serve.adapters.folder import read_adapter
from punica_serve.adapters.random_adapter import write_random_adapter
from punica_serve.base_model.lora_layout import LORA_GROUPS
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.engine import Engine
from punica_serve.protocol import (
    AdapterRef,
    AdaptersCached,
    AssignmentId,
    AssignmentsFailed,
    Forget,
    Request,
    SamplingParams,
    StartRequest,
    StepReport,
    StopRequest,
)
from waits import LONGEST_PAUSE_S

NUM_VERSIONS = 200
#: Versions after which all one-time allocations have been made.
NUM_WARMUP = 60
#: An adapter has 0.3 MB, so all versions after the warm-up would be 40 MB.
MAX_GROWTH_BYTES = 10 << 20
RANK = 64


class _Worker:
    """The step loop over a real engine; fetches read from a folder in place of the store."""

    def __init__(self, model: Path, device: str) -> None:
        config = EngineConfig(
            model=model,
            dtype="float32",
            page_size=4,
            num_kv_pages=256,
            num_lora_pages=40,
            host_cache_bytes=4 << 20,
            cpu_threads=1,
        )
        self.folders: dict[str, Path] = {}
        self.engine = Engine(config, device, self._fetch)
        self.loop = StepLoop(self.engine, "gpu", "host/0")
        self._seqs = count(1)
        #: Assignment -> its number of tokens.
        self.num_tokens: dict[int, int] = {}
        self.cached: set[str] = set()

    def _fetch(self, ref: AdapterRef) -> Future[Path]:
        future: Future[Path] = Future()
        future.set_result(self.folders[ref.digest])
        return future

    def start(self, *requests: tuple[AdapterRef, int]) -> list[int]:
        """Starts requests of so many tokens each in one turn; returns their assignments."""
        commands = [self._start(ref, num_tokens) for ref, num_tokens in requests]
        self.num_tokens |= {command.seq: 0 for command in commands}
        self.turn(commands)
        return [command.seq for command in commands]

    def _start(self, ref: AdapterRef, num_tokens: int) -> StartRequest:
        seq = next(self._seqs)
        sampling = SamplingParams(max_tokens=num_tokens, ignore_eos=True, seed=seq)
        return StartRequest("gpu", seq, AssignmentId(1, seq), Request(f"r{seq}", seq, (5, 6, 7), sampling, ref))

    def stop(self, counter: int) -> None:
        del self.num_tokens[counter]
        self.turn([StopRequest("gpu", next(self._seqs), AssignmentId(1, counter))])

    def turn(self, commands: Iterable[Command] = ()) -> None:
        told = self.loop.apply(commands)
        stepped, has_run = self.loop.step()
        for report in [*told, *stepped]:
            assert not isinstance(report, AssignmentsFailed), report.error
            if isinstance(report, AdaptersCached):
                self.cached |= set(report.came)
                self.cached -= set(report.left)
            if isinstance(report, StepReport):
                for counter in report.assignments:
                    self.num_tokens[counter] += 1
                for counter, _ in report.finished:
                    del self.num_tokens[counter]
        if not has_run:
            self.engine.wait(1.0)

    def run_until(self, condition: Callable[[], bool]) -> None:
        """Turns, ever slower: what a load takes on a busy machine must not outlast a request of 200 tokens."""
        for number in range(2_000):
            if condition():
                return
            self.turn()
            time.sleep(min(0.0005 * number, LONGEST_PAUSE_S))
        raise AssertionError("the worker gets nowhere")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def worker(tiny_llama: Path, request: pytest.FixtureRequest) -> Iterator[_Worker]:
    made = _Worker(tiny_llama, request.param)
    yield made
    made.engine.check_invariants()
    made.engine.close()


@pytest.fixture
def register(worker: _Worker, tiny_model: ModelConfig, tmp_path: Path) -> Callable[[], AdapterRef]:
    """Puts a new random adapter into the store."""
    seeds = count()

    def register() -> AdapterRef:
        folder = tmp_path / str(next(seeds))
        write_random_adapter(folder, tiny_model, rank=RANK, seed=int(folder.name), scale=0.5)
        ref = read_adapter(folder, tiny_model)
        worker.folders[ref.digest] = folder
        return replace(ref, uri=f"s3://bucket/{ref.digest}")

    return register


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
def test_two_hundred_reloads_leave_no_memory_behind(worker: _Worker, register: Callable[[], AdapterRef]) -> None:
    """Two other adapters never change. A request of the old version still runs when that is evicted."""
    steady = [register(), register()]
    old, (old_request,) = steady[0], worker.start((steady[0], 200))
    used: set[tuple[int, ...]] = set()
    at_first = at_first_on_gpu = 0
    for number in range(NUM_VERSIONS):
        new = register()
        new_request, *_ = worker.start((new, 200), *((ref, 2) for ref in steady))
        worker.run_until(lambda request=new_request: worker.num_tokens[request] > 1)  # type: ignore[misc]
        if number:
            worker.turn([Forget(old.digest)])
            assert old.digest in worker.engine.resident_adapters and old.digest in worker.cached, "one uses it"
            rmtree(worker.folders.pop(old.digest))
        worker.stop(old_request)
        old, old_request = new, new_request
        here = {ref.digest for ref in (*steady, new)}
        worker.run_until(lambda here=here: worker.cached == here == set(worker.engine.resident_adapters))  # type: ignore[misc]
        used.add((worker.engine.host_cache.used_bytes, *_free_lora_pages(worker.engine)))
        if number == NUM_WARMUP and os.path.exists("/proc/self/statm"):
            at_first, at_first_on_gpu = _resident_bytes(), torch.cuda.memory_allocated()
    worker.stop(old_request)
    worker.run_until(lambda: not worker.num_tokens)
    assert len(used) == 1, "host memory and LoRA pages, in the same state of each round"
    assert worker.engine.num_free_kv_pages == worker.engine.num_kv_pages
    if at_first:
        assert _resident_bytes() - at_first < MAX_GROWTH_BYTES
        assert torch.cuda.memory_allocated() - at_first_on_gpu < MAX_GROWTH_BYTES


def _free_lora_pages(engine: Engine) -> Iterator[int]:
    for group in LORA_GROUPS:
        yield engine._lora_pool.groups[group].pages.num_free


def test_while_the_store_hangs_for_one_adapter_others_go_on(
    worker: _Worker, register: Callable[[], AdapterRef], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Adapters on the GPU, on the disk, and those that the store still has."""
    here, fetched, hanging = register(), register(), register()
    local = replace(register(), uri=str(list(worker.folders.values())[-1]))
    worker.start((here, 1))
    worker.run_until(lambda: not worker.num_tokens)
    asked: Future[Path] = Future()
    fetch = worker._fetch
    monkeypatch.setattr(
        worker.engine._loader._host, "_fetch", lambda ref: asked if ref.digest == hanging.digest else fetch(ref)
    )
    waits, *_ = worker.start((hanging, 5), (here, 5), (fetched, 5), (local, 5))
    worker.run_until(lambda: set(worker.num_tokens) == {waits})
    assert worker.num_tokens[waits] == 0 and not worker.engine.has_runnable
    asked.set_result(worker.folders[hanging.digest])
    worker.run_until(lambda: not worker.num_tokens)
